"""A real Slurm on this machine, with nodes by name: slurmctld, a slurmd for each node, and munge, all of Debian's packages.

    with SlurmEngine(folder, nodes=2) as slurm:
        subprocess.run(["sinfo"], env=slurm.environment)

It takes root. NotHere says what is missing.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from engine_checks import NotHere

PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "srun", "sbatch", "squeue", "scancel")
START_S = 30
CPUS, MEMORY_MIB = 4, 2048

CONF = """
ClusterName=tessera
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,defer_batch
ReturnToService=2
KillWait=5
SlurmdTimeout=60
JobRequeue=1
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class SlurmEngine:
    def __init__(self, folder, nodes=2):
        self.path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
        missing = [name for name in PROGRAMS if shutil.which(name, path=self.path) is None]
        if missing:
            raise NotHere(f"Slurm is not installed: there is no {missing[0]} (tools/engines slurm installs it)")
        if os.geteuid() != 0:
            raise NotHere("Slurm is started as root")
        self.folder, self.processes = pathlib.Path(folder).absolute(), []
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.environment = {**os.environ, "PATH": self.path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def _start(self, *words):
        with open(self.folder / "daemons.log", "ab") as log:
            self.processes.append(subprocess.Popen(list(map(str, words)), env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                                                   stderr=log, start_new_session=True))

    def run(self, *words, **options):
        done = subprocess.run(list(map(str, words)), env=self.environment, capture_output=True, text=True, timeout=120, **options)
        assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def __enter__(self):
        try:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            (self.folder / "state").mkdir()
            port, *ports = free_ports(1 + len(self.nodes))
            host = socket.gethostname()
            lines = CONF.format(folder=self.folder, host=host, port=port)
            for name, node_port in zip(self.nodes, ports):
                lines += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs={CPUS} RealMemory={MEMORY_MIB}\n"
            lines += "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n"
            (self.folder / "slurm.conf").write_text(lines)
            key = self.folder / "munge.key"
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(1024))
            self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}", f"--pid-file={self.folder}/munge.pid",
                        f"--log-file={self.folder}/munge.log", f"--seed-file={self.folder}/munge.seed")
            self.wait_until(lambda: (self.folder / "munge.socket").exists(), "munge")
            self._start("slurmctld", "-D")
            for name in self.nodes:
                self._start("slurmd", "-D", "-N", name)
            self.wait_until(lambda: self.idle_nodes() == len(self.nodes), "all nodes to be idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def idle_nodes(self):
        done = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%t"], env=self.environment, capture_output=True, text=True)
        return done.stdout.split().count("idle")

    def wait_until(self, true, what, seconds=START_S):
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                logs = "".join(f"== {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(self.folder.glob("*.log")))
                raise TimeoutError(f"{what}: not in {seconds} s\n{logs}")
            time.sleep(0.02)

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
