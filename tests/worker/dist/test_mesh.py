"""Parallel sizes are checked against the world before torch sees them."""

from typing import Any

import pytest
import torch

from torchloom.worker import dist
from torchloom.worker.dist.parallelism import BadMesh, mesh_shape


@pytest.mark.parametrize(
    ("world", "sizes", "expected"),
    [
        (1, {}, (1, 1, 1, 1)),
        (8, {}, (1, 8, 1, 1)),
        (8, {"tp": 2}, (1, 4, 1, 2)),
        (8, {"tp": 2, "pp": 2, "cp": 2}, (2, 1, 2, 2)),
        (8, {"dp": 2, "tp": -1}, (1, 2, 1, 4)),
        (6, {"dp": 3, "tp": 2}, (1, 3, 1, 2)),
    ],
)
def test_what_is_left_goes_to_the_open_size(
    world: int, sizes: dict[str, int], expected: tuple[int, ...]
) -> None:
    assert mesh_shape(world, **sizes) == dict(zip(("pp", "dp", "cp", "tp"), expected, strict=True))


@pytest.mark.parametrize(
    ("world", "sizes", "why"),
    [
        (8, {"tp": 3}, "tp=3 does not fit 8 ranks|dp=-1 x tp=3 does not fit 8 ranks"),
        (8, {"dp": 2, "tp": 2}, "dp=2 x tp=2 does not fit 8 ranks: the product .* must be 8"),
        (2, {"dp": 4}, "dp=4 does not fit 2 ranks"),
        (4, {"dp": 1}, "dp=1 does not fit 4 ranks"),
        (8, {"tp": 0}, "tp=0: tensor-parallel size must be 1 or more, or -1"),
        (8, {"pp": -2}, "pp=-2: pipeline-parallel"),
        (8, {"tp": -1}, "dp and tp are both -1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_both_numbers(
    world: int, sizes: dict[str, int], why: str
) -> None:
    with pytest.raises(BadMesh, match=why):
        mesh_shape(world, **sizes)


def test_a_process_alone_has_a_mesh_of_one() -> None:
    try:
        mesh = dist.make_mesh()

        assert dist.get_mesh() is mesh
        assert (mesh.mesh_dim_names, tuple(mesh.shape)) == (("pp", "dp", "cp", "tp"), (1, 1, 1, 1))
    finally:
        dist.cleanup()
    assert dist.get_mesh() is None
    assert not torch.distributed.is_initialized()


@pytest.mark.process
def test_a_mesh_of_four_ranks_has_neighbours_in_its_tensor_groups(ranks: Any) -> None:
    script = """
dist.setup_torch(tensor_parallel_size=2)
mesh = dist.get_mesh()
tell([torch.distributed.get_process_group_ranks(mesh.get_group(dim)) for dim in ("dp", "tp")])
dist.cleanup()
"""

    told = ranks.group(script, 4)

    assert told == [[[0, 2], [0, 1]], [[1, 3], [0, 1]], [[0, 2], [2, 3]], [[1, 3], [2, 3]]]
