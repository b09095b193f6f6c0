import os
import subprocess
import sys

import pytest

from gmlp_flax.io.cores import usable_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_cores_that_a_process_may_use():
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}]); from gmlp_flax.io import cores; print(cores.usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\n"
    assert usable_cores() == len(os.sched_getaffinity(0))
