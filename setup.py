"""The CPU kernels: one source, and a build for each instruction set (`native.loading.BUILDS`).

Where there is no C compiler they are left out, and PyTorch's operators serve.
"""

from copy import copy
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = ["-O3", "-fno-math-errno", "-fvisibility=hidden", "-pthread"]
V3 = ["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mf16c", "-mlzcnt", "-mmovbe"]
V4 = ["-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl", *V3[1:]]
#: Those of x86-64-v4 and v3, which GCC knows by these names from version 11 on only.
INSTRUCTIONS = {"_cpu_v4": V4, "_cpu_v3": V3, "_cpu": []}


class Apart(build_ext):
    """Builds at the same time, each in a folder of its own: their object files have one name."""

    def build_extension(self, ext: Extension) -> None:
        own = copy(self)
        own.build_temp = str(Path(self.build_temp, ext.name))
        super(Apart, own).build_extension(ext)


setup(
    cmdclass={"build_ext": Apart},
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
