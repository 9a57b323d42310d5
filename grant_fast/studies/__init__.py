"""Many runs side by side: arms compared over seeds, the paper's benchmarks, tables and pictures."""
