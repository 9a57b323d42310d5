"""The CPU kernels: one source, a build for each instruction set; kernels/cpu/cpu.c says why.

Where there is no C compiler they are left out, and PyTorch's operators serve.
"""

from glob import glob

from setuptools import Extension, setup

FLAGS = ["-O3", "-fno-math-errno", "-fvisibility=hidden", "-pthread"]
V3 = ["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mf16c", "-mlzcnt", "-mmovbe"]
V4 = ["-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl", *V3[1:]]
#: Those of x86-64-v4 and v3, which GCC knows by these names from version 11 on only.
INSTRUCTIONS = {"_cpu_v4": V4, "_cpu_v3": V3, "_cpu": []}

setup(
    ext_modules=[
        Extension(
            f"grant_fast.native.{name}",
            ["kernels/cpu/cpu.c"],
            depends=sorted(glob("kernels/cpu/*.h")),
            extra_compile_args=[*FLAGS, *instructions],
            extra_link_args=["-pthread"],
            optional=True,
        )
        for name, instructions in INSTRUCTIONS.items()
    ],
    options={"build_ext": {"parallel": 3}},
)
