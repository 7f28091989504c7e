"""For authors of components: a test case that checks whether a function can be used as one."""

import unittest
from types import ModuleType

from torchloom.components.finder import get_component
from torchloom.specs.builders import component_help


class ComponentTestCase(unittest.TestCase):
    """A unittest case with one check more."""

    def validate(self, module: ModuleType, function_name: str) -> None:
        """Fail unless `loom run FILE.py:function_name --help` would work."""
        if not module.__file__:
            self.fail(f"{module.__name__} has no file")
        component = get_component(f"{module.__file__}:{function_name}")
        assert component.name in component_help(component)
