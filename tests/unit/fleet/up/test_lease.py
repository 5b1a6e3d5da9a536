"""One controller at a time, told apart for certain."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.fleet.up.lease import holder_of, lease

HOLD = """
import sys, time
from pathlib import Path
from headrace.fleet.up.lease import lease
with lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_second_controller_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "fleet"
    assert holder_of(directory) is None
    with lease(directory):
        with pytest.raises(ConfigError, match=f"process {os.getpid()}"), lease(directory):
            pass
        holder = holder_of(directory)
        assert holder is not None
        assert holder.pid == os.getpid()
    assert holder_of(directory) is None
    with lease(directory):
        pass


def test_the_lease_of_one_that_was_killed_is_free_at_once(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        holder = holder_of(tmp_path)
        assert holder is not None
        assert holder.pid == held.pid
        held.send_signal(signal.SIGKILL)
        held.wait()
    assert holder_of(tmp_path) is None
    with lease(tmp_path):
        pass


@pytest.mark.parametrize("text", ["", "1 1", "x y", "{pid} 1", "9" * 90])
def test_what_the_file_names_is_not_believed(tmp_path: Path, text: str) -> None:
    with lease(tmp_path):
        (tmp_path / "controller").write_text(text.format(pid=os.getpid()))
        assert holder_of(tmp_path) is None
        with pytest.raises(ConfigError, match="another process"), lease(tmp_path):
            pass
