import witness  # noqa: F401, I001
import sys

print(sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.getrecursionlimit())
print(sys.getfilesystemencoding(), sys.getdefaultencoding(), sys.flags.hash_randomization)
print(sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), sys.is_finalizing())
