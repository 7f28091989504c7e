import witness  # noqa: F401, I001
import os
import resource

mask = os.umask(0)
os.umask(mask)
names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
print(oct(mask), {name: resource.getrlimit(getattr(resource, name)) for name in names})
print(os.nice(0), sorted(os.sched_getaffinity(0)), os.getcwd(), os.getgroups(), os.getresuid())
print(os.getpid() == os.getsid(0) == os.getpgid(0), os.readlink("/proc/self/exe"))
