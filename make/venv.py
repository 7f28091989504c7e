"""Build the virtual environments: what a target needs, once, again after an interruption."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = os.environ.get("TORCH") or "torch==2.13.0"
SHOWN = ("Processing ", "Downloading ", "Using cached ", "Installing ")


@dataclass(frozen=True)
class Recipe:
    """An environment: its folder, and the pip requirements that go in, one pip run a line."""

    folder: str
    steps: tuple[tuple[str, str], ...]
    small_mb: int
    made_of: tuple[str, ...] = ("pyproject.toml",)


TORCH_STEP = (TORCH, TORCH)
RECIPES = {
    "demo": Recipe(".venv", (TORCH_STEP, ("numpy -e .", "torchloom and numpy")), 50),
    "dev": Recipe(
        ".venv",
        (
            TORCH_STEP,
            ("--no-deps --require-hashes -r make/frameworks.txt", "transformers, lightning, jax"),
            ("numpy -e .[dev]", "torchloom, numpy, dev tools"),
        ),
        240,
        made_of=("pyproject.toml", "make/frameworks.txt"),
    ),
    "peers": Recipe(
        ".build/peers",
        (TORCH_STEP, ("numpy torchx-nightly torchft-nightly", "torchx-nightly, torchft-nightly")),
        35,
        made_of=(),
    ),
    "trackers": Recipe(
        ".build/trackers",
        (("wandb mlflow psycopg[binary]", "wandb, mlflow, psycopg"),),
        300,
        made_of=(),
    ),
}
COVERED_BY = {name: (name,) for name in RECIPES} | {"demo": ("demo", "dev")}


def main(name: str) -> None:
    """Bring one environment up to date; return at once when it already is."""
    recipe = RECIPES[name]
    folder = ROOT / recipe.folder
    stamps = [folder / f".{covering}.stamp" for covering in COVERED_BY[name]]
    if any(is_current(stamp, RECIPES[stamp.name.split(".")[1]]) for stamp in stamps):
        return
    began = time.monotonic()
    announce(recipe)
    unfinished = folder / ".unfinished"
    make_folder(folder, unfinished)
    unfinished.touch()
    for number, (requirements, what) in enumerate(recipe.steps, 1):
        print(f"[{number}/{len(recipe.steps)}] {what}", flush=True)
        install(folder, requirements)
    write_stamp(folder / f".{name}.stamp", recipe)
    unfinished.unlink()
    print(f"{recipe.folder} is ready ({time.monotonic() - began:.0f} s)", flush=True)


def fingerprint(recipe: Recipe) -> str:
    """Return what an environment depends on: where it is, what is in it, who runs it."""
    facts = [str(ROOT), sys.executable, sys.version, *(line for line, _ in recipe.steps)]
    facts += [(ROOT / name).read_text() for name in recipe.made_of]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()


def is_current(stamp: Path, recipe: Recipe) -> bool:
    """Say whether a finished build left this stamp and nothing it depends on has changed."""
    try:
        text = stamp.read_text().strip()
    except OSError:
        return False
    return text == fingerprint(recipe) and not (stamp.parent / ".unfinished").exists()


def write_stamp(stamp: Path, recipe: Recipe) -> None:
    """Write the stamp in one step, as the last thing."""
    partial = stamp.with_suffix(".partial")
    partial.write_text(fingerprint(recipe) + "\n")
    partial.replace(stamp)


def announce(recipe: Recipe) -> None:
    """Say what is downloaded, and how much, before it is."""
    print(f"Setting up {recipe.folder} with Python {sys.version.split()[0]}.")
    if TORCH_STEP not in recipe.steps:
        print(f"It downloads about {recipe.small_mb} MB, less what pip has cached.", flush=True)
        return
    print(f"It downloads {TORCH}: about 190 MB as a CPU build, some 3 GB where pip's")
    print("index serves the CUDA build (the public one does, on Linux), and about")
    print(f"{recipe.small_mb} MB of small packages, less what pip has cached. Another build, as")
    print("PyTorch's own page offers them:  make ... TORCH='torch==2.13.0 --index-url URL'")
    sys.stdout.flush()


def make_folder(folder: Path, unfinished: Path) -> None:
    """Make the environment, or keep a whole one; one that an interruption left is remade."""
    if unfinished.exists():
        print(f"{folder.name}: a set-up was interrupted, starting it over", flush=True)
        shutil.rmtree(folder)
    if works(folder):
        return
    ours = any(folder.glob(".*.stamp"))
    if folder.exists() and not ours and any(folder.iterdir()):
        sys.exit(f"make: {folder} is not a working environment and not ours: move it away.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    unfinished.touch()
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)


def works(folder: Path) -> bool:
    """Say whether this is an environment for this Python, with a pip that was made in place."""
    python = folder / "bin/python"
    probe = "import pip, sys; print(sys.prefix, sys.version)"
    try:
        said = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    script = folder / "bin/pip"
    return said.stdout.strip() == f"{folder} {sys.version}" and str(folder) in script.read_text()


def install(folder: Path, requirements: str) -> None:
    """Run pip: with its progress bar on a terminal, else with one line a package."""
    words = [str(folder / "bin/python"), "-m", "pip", "install", *shlex.split(requirements)]
    words += ["--disable-pip-version-check"]
    if sys.stdout.isatty():
        done = subprocess.run(words, cwd=ROOT, check=False).returncode
    else:
        done = install_quietly([*words, "--progress-bar", "off"])
    if done:
        sys.exit(f"make: pip could not install {requirements}; see above, then run make again.")


def install_quietly(words: list[str]) -> int:
    """Run pip and print only the lines that tell what it fetches, installs or refuses."""
    recent: deque[str] = deque(maxlen=30)
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            recent.append(line)
            if line.strip().startswith(SHOWN):
                print(f"  {line.strip()[:78]}", flush=True)
    if pip.returncode:
        print("".join(recent), flush=True)
    return pip.returncode


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit("\nmake: interrupted; the next make continues from here.")
