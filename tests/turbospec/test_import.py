import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "vllm", "turbospec_engine", "turbospec_sim", "joblib", "matplotlib")


@pytest.mark.parametrize("module", ["turbospec", "turbospec.policy", "turbospec.controller", "turbospec.cli.policy"])
def test_imports_no_engine(module):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
