"""Only the owner of a run reaches its processes: other accounts of the machine, without its certificate, do not."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil

from tests.processes import unprivileged

# A run's workers and, to see that the intruder is able to, an open scheduler as Dask has it.
RUN = """
import json, os, sys
import dask
from distributed import Scheduler, SpecCluster
from metastep._core.parallel import completed
from metastep.integrations.dask import workers

if __name__ == "__main__":
    options = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with SpecCluster(workers={}, scheduler={"cls": Scheduler, "options": options}) as open_one, workers(1) as pool:
        calls = iter([(0, os.getpid)])
        assert list(completed(pool, lambda _: next(calls, None)))  # the worker is there
        services = open_one.scheduler.services["dashboard"].port
        ports = {"open": open_one.scheduler.port, "pages": services, "scratch": dask.config.get("temporary-directory")}
        print(json.dumps(ports), flush=True)
        sys.stdin.read()
"""


def listening(process: psutil.Process) -> dict[int, str]:
    """Return the addresses by port that a process and its children listen at."""
    found = [each for one in (process, *process.children(recursive=True)) for each in one.net_connections("inet")]
    return {each.laddr.port: each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}


def test_another_account_reaches_no_process_of_a_run(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RUN)
    run = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        known = json.loads(run.stdout.readline())
        scratch = os.stat(known["scratch"])
        assert (scratch.st_uid, stat.S_IMODE(scratch.st_mode)) == (os.getuid(), 0o700)
        process = psutil.Process(run.pid)
        ports = listening(process)
        assert set(ports.values()) == {"127.0.0.1"}
        private = set(ports) - {known["open"], known["pages"]}
        assert len(private) == 3  # scheduler, nanny, worker: none serves pages
        for one in (process, *process.children(recursive=True)):
            assert not [each.laddr for each in one.net_connections("unix") if each.laddr]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        intruder = [sys.executable, "-m", "tests.campaigns.intruder"]
        command = [*unprivileged(), *intruder, *map(str, [known["open"], *private])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200.0)
        assert done.returncode == 0, done.stderr
        answers = {int(port): tried for port, tried in json.loads(done.stdout).items()}
        assert answers[known["open"]]["client"] == str(os.getuid())  # code ran as the owner
        for port in private:
            assert set(answers[port].values()) == {""}
    finally:
        run.communicate(timeout=60.0)
    assert not Path(known["scratch"]).exists()
