"""What the package has, it uses: no public function, method or class is there for tests alone."""

import pytest

from . import unused

pytestmark = pytest.mark.process  # it takes some seconds

TORCHX = "a name of TorchX that components and scripts may call"
ALLOWED = {
    "components/component_test_base.py:ComponentTestCase": TORCHX,
    "schedulers/__init__.py:get_default_scheduler_name": TORCHX,
    "schedulers/api.py:filter_regex": TORCHX,
    "schedulers/api.py:split_lines_iterator": TORCHX,
    "specs/options.py:runopts.cfg_from_json_repr": TORCHX,
    "specs/resources.py:Resource.is_fractional": TORCHX,
    "specs/status.py:AppStatus.raise_for_status": TORCHX,
    "server/security/protocol.py:HandshakeGate.eof_received": "asyncio calls it",
    "cli/command.py:_WithExamples.format_epilog": "click calls it",
    "worker/threadlet/import_hook.py:_HookLoader.create_module": "the import system calls it",
    "launch/keeper/zygote_client.py:leave_all": "benchmarks and make/stage.py call it, in a string",
    "rules/devices.py:DRMap.pid_to_devices": "a name of torchLoom's: the other half of the map",
}


def test_nothing_is_there_for_tests_alone() -> None:
    found = {str(each) for each in unused.unused()}

    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "no longer found: take it off the list"
