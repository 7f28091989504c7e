from pathlib import Path

import pytest

from torchloom.bus.nats.credentials import CredentialsUnusable, read, split

TEXT = """-----BEGIN NATS USER JWT-----
eyJ0.eyJq.c2ln
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
SUABC
------END USER NKEY SEED------
"""


def test_a_file_of_credentials_holds_a_jwt_and_a_seed(tmp_path: Path) -> None:
    path = tmp_path / "agent.creds"
    path.write_text(TEXT)
    path.chmod(0o600)

    assert read(path) == split(TEXT) == ("eyJ0.eyJq.c2ln", "SUABC")


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (TEXT, 0o640, "others can read it; `chmod 600 "),
        ("SUABC\n", 0o600, "it contains no JWT with a seed"),
        ("", 0o600, "it contains no JWT with a seed"),
    ],
)
def test_a_file_that_others_can_read_or_that_is_none_is_not_used(
    tmp_path: Path, text: str, mode: int, why: str
) -> None:
    path = tmp_path / "agent.creds"
    path.write_text(text)
    path.chmod(mode)

    with pytest.raises(CredentialsUnusable) as caught:
        read(path)

    assert why in str(caught.value)
    assert "SUABC" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsUnusable, match="No such file"):
        read(tmp_path / "none")
