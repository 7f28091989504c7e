"""Values that are known only when a replica starts: `${app_id}` and its like."""

import copy
from dataclasses import asdict, dataclass
from typing import Any

from torchloom.specs.role import Role


class macros:
    """What may be written in a role's args, env and metadata, and is filled in per replica."""

    img_root = "${img_root}"
    app_id = "${app_id}"
    replica_id = "${replica_id}"
    rank0_env = "${rank0_env}"  # the NAME of the variable that holds rank 0's host

    @dataclass
    class Values:
        """What the macros stand for in one replica."""

        img_root: str
        app_id: str
        replica_id: str
        rank0_env: str

        def apply(self, role: Role) -> Role:
            """Return a deep copy of the role with every macro replaced."""
            # late values may be coroutines, which cannot be copied: the copy gets the same ones
            filled = copy.deepcopy(role, {id(role.overrides): dict(role.overrides)})
            filled.args = [self.substitute(arg) for arg in filled.args]
            filled.env = {key: self.substitute(value) for key, value in filled.env.items()}
            filled.metadata = self._fill(filled.metadata)
            return filled

        def _fill(self, value: Any) -> Any:
            if isinstance(value, str):
                return self.substitute(value)
            if isinstance(value, dict):
                return {key: self._fill(inner) for key, inner in value.items()}
            if isinstance(value, list):
                return [self._fill(inner) for inner in value]
            return value

        def to_dict(self) -> dict[str, Any]:
            return asdict(self)

        def substitute(self, arg: str) -> str:
            """Return the text with macros replaced; other `$` words stay, `$$` becomes `$`."""
            from string import Template

            return Template(arg).safe_substitute(self.to_dict())
