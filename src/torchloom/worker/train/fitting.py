"""Whether a job's model, dataset and hyperparameters fit together, before anything is opened.

No torch here, as in `hyper`.
"""

from collections.abc import Mapping

from torchloom.errors import shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import JobSpec
from torchloom.worker.train.hyper import MODULE, Hyper, hyper_of
from torchloom.worker.train.named import unknown

MODELS: Mapping[str, str] = {"mlp": "features", "cnn": "features", "transformer": "tokens"}
DATASETS: Mapping[str, str] = {"synthetic": "features", "text": "tokens", "npz": "features"}
_OWN = f"{MODULE}package.function"
_SPELLED = ("synthetic", "synthetic:N", "text:FILE", "npz:FILE", _OWN)


def check_job(spec: JobSpec) -> Hyper:
    """Return the hyperparameters of a job for ready-made training, or say what is wrong with it."""
    if not spec.model:
        raise SpecError("model", "missing: ready-made training takes a model and a dataset")
    if spec.model not in MODELS and not spec.model.startswith(MODULE):
        raise unknown("model", spec.model, (*MODELS, _OWN))
    kind, colon, rest = spec.dataset.partition(":")
    if not spec.dataset.startswith(MODULE):
        is_named = kind in DATASETS and (bool(rest) if colon else kind == "synthetic")
        if not is_named:
            raise unknown("dataset", spec.dataset, _SPELLED)
        check_fit(spec, DATASETS[kind])
    return hyper_of(spec)


def check_fit(spec: JobSpec, kind: str) -> None:
    """Refuse samples of a kind that the job's model does not take."""
    wanted = MODELS.get(spec.model, kind)
    if kind == wanted:
        return
    data = "text:FILE" if wanted == "tokens" else "synthetic or npz:FILE"
    fitting = " or ".join(name for name, other in MODELS.items() if other == kind)
    problem = f"{spec.model} does not fit to dataset {shorten(spec.dataset)}"
    raise SpecError("model", f"{problem}: take dataset {data}, or model {fitting}")
