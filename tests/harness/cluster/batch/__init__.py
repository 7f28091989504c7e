"""What the fakes of batch systems share: a queue daemon, a daemon on each host, running scripts.

A vendor's folder beside this one has the grammar and the words; here is what every batch system
does: keep jobs in a queue, place them on hosts, run a script on the first host of a job and tasks
on the others, enforce limits by signals, notice hosts that die. Nothing here is pretended: jobs are
processes on their hosts, with the environment the vendor gives and no other, and what a host has
of its own (/run, its processes, its addresses) is its own.

    with Pbs(tmp_path) as pbs:                  # one host, this machine; quick
        done = pbs.run("qsub", "job.sh")

    def test_a_job_on_two_hosts(pbs_cluster: Cluster) -> None:
        pbs_cluster.run("n1", ["qsub", "-l", "select=2", "job.sh"])     # hosts as namespaces

- `job.py` what is known of a job; `place.py` which hosts it gets; `queue.py` decides and does no
  I/O; `server.py` is the queue's daemon; `node.py` the one on each host, `processes.py` what it
  runs; `wire.py` lines of JSON over TCP, so that a cut cable is a silent host; `system.py` starts
  and ends all of it; `options.py` getopt as the C library has it.
"""
