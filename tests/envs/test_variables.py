"""What of an environment is a job's, and what must stay where it is."""

from hypothesis import given
from hypothesis import strategies as st

from torchloom.envs.saved import IDENTITY, choose, is_secret, part_of

JOB = {
    "SLURM_JOB_ID": "7",
    "PBS_NODEFILE": "/var/spool/pbs/aux/7",
    "RANK": "0",
    "MASTER_ADDR": "n1",
    "PATH": "/bin",
    "LD_LIBRARY_PATH": "/lib",
    "LOADEDMODULES": "gcc/12",
    "VIRTUAL_ENV": "/v",
    "NCCL_DEBUG": "INFO",
    "WANDB_PROJECT": "gpt",
}


def test_scheduler_ranks_paths_modules_and_libraries_are_the_jobs() -> None:
    kept, secrets = choose(JOB)

    assert (kept, secrets) == (JOB, [])
    parts = [part_of(name) for name in ("SLURM_JOB_ID", "RANK", "PATH", "LOADEDMODULES", "EDITOR")]
    assert parts == ["scheduler", "ranks", "paths", "modules", "other"]


def test_what_belongs_to_a_shell_stays_there() -> None:
    own = {
        "PWD": "/x",
        "SHLVL": "2",
        "SSH_AUTH_SOCK": "/s",
        "XDG_RUNTIME_DIR": "/run",
        "EDITOR": "vi",
    }

    assert choose({**JOB, **own}) == (JOB, [])
    assert choose({**JOB, **own}, everything=True) == ({**JOB, "EDITOR": "vi"}, [])


def test_secrets_are_left_out_by_name_or_by_a_password_in_their_value() -> None:
    secrets = {
        "HF_TOKEN": "x",
        "WANDB_API_KEY": "x",
        "SLURM_SECRET_THING": "x",
        "CUDA_PASSWORD": "x",
        "PBS_credential": "x",
        "HTTPS_PROXY": "http://ada:pw@proxy:3128",
    }

    assert choose({**JOB, **secrets}) == (JOB, sorted(secrets))
    assert choose({**JOB, **secrets}, everything=True) == ({**JOB, **secrets}, [])
    assert not is_secret("HTTPS_PROXY", "http://proxy:3128")


@given(st.dictionaries(st.sampled_from(sorted(IDENTITY)), st.text()), st.booleans())
def test_no_shell_is_ever_taken_for_a_part_of_the_job(env: dict[str, str], all_: bool) -> None:
    assert choose(env, all_)[0] == {}
