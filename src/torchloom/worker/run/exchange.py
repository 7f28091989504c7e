"""What the ranks of a replicated model exchange: gradients in fewer bytes, or weights less often.

Gradients are compressed in DDP's communication hook. The exchange outlives DDP, which is built anew
for each generation. What it has not sent is part of the state of its rank: checkpoints and live
recovery carry it.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.optim import Adam, Optimizer

from torchloom.specs.jobspec import Algorithm, Compression
from torchloom.worker.dist.compression import (
    NEVER,
    BucketSlots,
    ErrorMemory,
    GradientBucket,
    codec_of,
    exchange,
    mean_of,
    split_by,
)
from torchloom.worker.dist.hierarchy import FLAT, ReducePlan, choose
from torchloom.worker.run.agreement import gather, together

State = dict[str, Any]
_FIRST, _SECOND = "exp_avg", "exp_avg_sq"  # moments of Adam
_WHOLE: Callable[..., Any] = default_hooks.allreduce_hook
_HALVES: Mapping[Algorithm, Callable[..., Any]] = {
    Algorithm.FP16: default_hooks.fp16_compress_hook,
    Algorithm.BF16: default_hooks.bf16_compress_hook,
}


class GradientExchange:
    """The communication hook of one model, and what this rank has not sent yet."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        options: Compression,
        folder: Path | None,
        share: Callable[[], float] | None,
        optimizers: Callable[[], Iterable[Optimizer]],
    ) -> None:
        self.is_idle = False  # in passes that do not count
        self.name = name
        self._module = module
        self._options = options
        self._memory = ErrorMemory(folder, name)
        self._layout: dict[int, tuple[list[str], list[torch.Size]]] = {}
        self._codec = codec_of(options, self._share_of_step)
        self._share = share
        self._shared = (NEVER, 0.0)  # the share of this step: it is one for all buckets
        self._adam = FrozenAdam(optimizers)
        self._step = 0
        self._counts_itself = True  # without `run.steps`
        self._pending: State = {}  # of a checkpoint, until the buckets are known
        self._used_at: int | None = None  # the step that used it

    # The hook.

    def exchanged(self, bucket: GradientBucket) -> Any:
        """Return a future of the mean of a bucket's gradients; DDP calls it in backward."""
        algorithm, step = self._options.algorithm, self._step
        assert algorithm is not None
        if self._counts_itself and bucket.is_last() and not self.is_idle:
            self._step += 1
        if self.is_idle or step < (self._options.warmup_steps or 0):
            return _WHOLE(dist.group.WORLD, bucket)
        if algorithm in _HALVES:
            return _HALVES[algorithm](dist.group.WORLD, bucket)
        if algorithm is Algorithm.POWERSGD:
            return self._by_powersgd(bucket, step)
        return self._by_codec(bucket, step)

    def _by_codec(self, bucket: GradientBucket, step: int) -> Any:
        assert self._codec is not None
        flat, slots = bucket.buffer(), self._slots(bucket)
        is_there = slots.enter(step)
        if self._options.algorithm is Algorithm.ONEBIT:
            self._adam.to_momenta(bucket)
        if is_there:
            flat.add_(slots.error)
        sizes = [each.numel() for each in bucket.gradients()]
        payload = exchange(self._codec, flat, sizes, slots.next_error)
        slots.leave(step)  # before anything is sent
        return mean_of(self._codec, payload, flat, sizes)

    def _by_powersgd(self, bucket: GradientBucket, step: int) -> Any:
        """Run torch's hook with the state of this bucket, to its end: buckets keep their order."""
        slots, index = self._slots(bucket, self._options.rank or 1), bucket.index()
        state = powerSGD_hook.PowerSGDState(
            None, self._options.rank or 1, start_powerSGD_iter=2, random_seed=index
        )
        state.iter = state.start_powerSGD_iter
        if slots.enter(step):
            state.error_dict[index] = slots.error
            first, second = slots.matrices
            if first.numel() + second.numel():
                state.p_memory_dict[index] = first.clone()
                state.q_memory_dict[index] = second.clone()
        found = powerSGD_hook.powerSGD_hook(state, bucket).wait()
        slots.next_error.copy_(state.error_dict[index])
        slots.keep_matrices(state.p_memory_dict[index], state.q_memory_dict[index])
        slots.leave(step)
        if bucket.is_last():  # no rank steps before every rank has kept its errors
            dist.all_reduce(torch.zeros(1, device=found.device))
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(found)
        return done

    def _share_of_step(self) -> float:
        if self._shared[0] != self._step:
            self._shared = self._step, self._share() if self._share is not None else 1.0
        return self._shared[1]

    def _slots(self, bucket: GradientBucket, rank: int = 0) -> BucketSlots:
        """Return the slots of a bucket, with what a checkpoint has of it."""
        index, flat = bucket.index(), bucket.buffer()
        slots = self._memory.slots.get(index)
        if slots is None:
            names, shapes = self._laid_out(bucket)
            more = sum(_factors(shape, rank) for shape in shapes) if rank else 0
            key = "/".join((str(self._options.algorithm), *names))
            slots = self._memory.open(index, key, flat.numel(), more, flat)
        if self._pending and slots.newest == NEVER:
            self._restore(index, slots)
        return slots

    def _laid_out(self, bucket: GradientBucket) -> tuple[list[str], list[torch.Size]]:
        known = {id(each): name for name, each in self._module.named_parameters()}
        parameters = bucket.parameters()
        found = [known[id(each)] for each in parameters], [each.shape for each in parameters]
        self._layout[bucket.index()] = found
        return found

    def _restore(self, index: int, slots: BucketSlots) -> None:
        """Fill in the errors of the step before this one, as a checkpoint or a page has them."""
        names, _ = self._layout[index]
        errors = self._pending["errors"]
        self._used_at = self._step
        if not all(name in errors for name in names):
            return
        slots.enter(self._step - 1)
        slots.next_error.copy_(torch.cat([errors[name].flatten() for name in names]))
        factors = self._pending["factors"].get(str(index))
        if factors is not None:
            slots.keep_matrices(*factors)
        slots.leave(max(0, self._step - 1))

    # What checkpoints and live recovery carry.

    def begin_step(self, step: int) -> None:
        """Number the steps as the run does."""
        self._counts_itself, self._step = False, step
        self._adam.begin_step()
        if self._used_at is not None and step > self._used_at:
            self._pending, self._used_at = {}, None

    def state(self) -> State:
        """Return what this rank has not sent yet, by parameter; for a checkpoint."""
        if not self._memory.slots and self._pending:
            return self._pending
        found: State = {"errors": {}, "factors": {}}
        for index, slots in self._memory.slots.items():
            if slots.newest == NEVER:
                continue
            slots.look()
            found["errors"] |= split_by(slots.error, *self._layout[index])
            first, second = slots.matrices
            if first.numel() + second.numel():
                found["factors"][str(index)] = [first, second]
        return found

    def load(self, state: State) -> None:
        """Continue with the state of a checkpoint."""
        self._memory.forget()
        self._pending, self._used_at = state, None

    def page(self, rank: int) -> State:
        """Return what a page says of it; the errors have shared memory of their own.

        OSError where they have none: then a lost process cannot be replaced.
        """
        if self._memory.slots and self._memory.why_unkept:
            raise OSError(self._memory.why_unkept)
        kept = sum(slots.newest != NEVER for slots in self._memory.slots.values())
        return {"rank": rank, "kept": kept, "pending": self._pending}

    def rejoin(self, start: int, rank: int, page: State | None, is_new: bool) -> str:
        """Continue at a step of another generation; return why that is not exact, if so."""
        if not is_new:
            self._memory.drop_from(start)
            return ""
        if page is None or page["rank"] != rank:
            self._memory.forget()
            return "" if page is None or not page["kept"] else "errors of compression are lost"
        self._pending = page["pending"]
        if page["kept"] > self._memory.left():
            self._memory.forget()
            return "errors of compression are lost"
        self._memory.inherit(start)
        return ""

    def drop(self) -> None:
        """Forget what belongs to an interrupted step."""
        self._adam.begin_step()


def _factors(shape: Sequence[int], rank: int) -> int:
    """Return how many numbers both factors of a gradient have at most."""
    rows = shape[0] if len(shape) > 1 else 0
    columns = torch.Size(shape[1:]).numel() if rows else 0
    return (rows + columns) * min(rank, rows, columns)


class FrozenAdam:
    """1-bit Adam: after its warm-up the ranks exchange momenta, and variances are frozen.

    The gradients that backward leaves are then mean momenta. The optimizer's own step makes of them
    what Adam makes of its moments; this puts the moments in place before it.
    """

    def __init__(self, optimizers: Callable[[], Iterable[Optimizer]]) -> None:
        self._optimizers = optimizers
        self._hooked: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._momenta: set[Tensor] = set()

    def begin_step(self) -> None:
        """Begin a step, in which gradients are gradients."""
        self._momenta.clear()

    def to_momenta(self, bucket: GradientBucket) -> None:
        """Make this rank's gradients of a bucket its momenta, where Adam steps with them."""
        groups = {
            parameter: (optimizer, group)
            for optimizer in self._optimizers()
            if isinstance(optimizer, Adam)  # AdamW is one
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if parameter not in groups:
                continue
            optimizer, group = groups[parameter]
            first = optimizer.state.get(parameter, {}).get(_FIRST)
            beta = float(group["betas"][0])
            if first is None or not beta:
                continue
            if optimizer not in self._hooked:
                self._hooked.add(optimizer)
                optimizer.register_step_pre_hook(self._before)
            gradient.mul_(1 - beta).add_(first, alpha=beta)
            self._momenta.add(parameter)

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        """Have the step end with the mean momenta, and with the variances of the warm-up."""
        for group in optimizer.param_groups:
            first, second = map(float, group["betas"])
            for parameter in group["params"]:
                if parameter not in self._momenta or parameter.grad is None:
                    continue
                state = optimizer.state[parameter]
                done = float(state["step"])
                frozen = (1 - second ** (done + 1)) / (1 - second**done)
                state[_FIRST].copy_(parameter.grad).div_(first)
                state[_SECOND].mul_(frozen / second)
                parameter.grad.zero_()
        self._momenta.clear()


class PlannedMean:
    """The communication hook of ranks on several hosts: whole gradients, added up by a plan."""

    def __init__(self) -> None:
        self.is_idle = False
        self.plan: ReducePlan | None = None  # until the first step of the run
        self.why = ""  # why another plan than that of the checkpoint is used

    def exchanged(self, bucket: GradientBucket) -> Any:
        """Return a future of the mean of a bucket's gradients."""
        if self.plan is None or self.plan.way == FLAT or self.is_idle:
            return _WHOLE(dist.group.WORLD, bucket)
        flat = bucket.buffer().div_(dist.get_world_size())
        self.plan.sum(flat)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(flat)
        return done

    def drop(self) -> None:
        """Nothing of it belongs to a step."""

    def take(self, state: State) -> None:
        """Add up as the run did before, or as the other ranks do."""
        self.plan = ReducePlan(str(state["way"]), tuple(state["hosts"]))

    def choose(self, node: str, before: State | None) -> dict[str, Any]:
        """Use the plan of a checkpoint, or measure; return what to report. A collective call."""
        world = dist.get_world_size()
        if before is not None and len(before["hosts"]) == world:
            self.take(before)
            return {}
        hosts = gather(xxhash.xxh3_64_intdigest(node.encode()) >> 1)
        self.plan, seconds = choose(hosts, torch.device("cpu"))
        if before is not None:
            self.why = f"all-reduce of {len(before['hosts'])} ranks was planned, these are {world}"
        times = {f"{way}_ms": round(1000 * taken, 3) for way, taken in seconds.items()}
        return {"way": self.plan.way, "hosts": len(set(hosts)), "ranks": world, **times}


class WeightExchange:
    """Local steps, and every so many of them an outer step of all ranks (local SGD, DiLoCo).

    The outer gradient is the mean way of all ranks from the weights of the last exchange; the outer
    optimizer is SGD with Nesterov momentum. Between two exchanges weights differ among the ranks.
    """

    def __init__(self, module: nn.Module, options: Compression, every: Callable[[], int]) -> None:
        self._module = module
        self._options = options
        self._every = every
        self._done = 0  # steps since the last exchange
        self._anchors: dict[str, Tensor] = {}
        self._momenta: dict[str, Tensor] = {}

    @torch.no_grad()
    def start(self, is_sent: bool) -> None:
        """Begin with these weights; with those of rank 0 if they are sent."""
        if is_sent and together():
            for tensor in (*self._module.parameters(), *self._module.buffers()):
                dist.broadcast(tensor, src=0)
        self._anchors = {name: each.clone() for name, each in self._trained()}
        self._momenta = {name: torch.zeros_like(each) for name, each in self._trained()}
        self._done = 0

    def passed(self) -> None:
        """Count a step of this rank; exchange weights if that is due."""
        self._done += 1
        if self._done >= self._every():
            self._exchange()

    def finish(self) -> None:
        """Exchange the last weights, so that all ranks end with the same."""
        if self._done:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        self._done = 0
        way = torch.cat([(self._anchors[name] - each).flatten() for name, each in self._trained()])
        if together():
            dist.all_reduce(way)
            way.div_(dist.get_world_size())
        rate, keeps = self._options.outer_lr or 0.0, self._options.outer_momentum or 0.0
        sizes = [each.numel() for _, each in self._trained()]
        for (name, weight), part in zip(self._trained(), torch.split(way, sizes), strict=True):
            gradient = part.view_as(weight)
            momentum = self._momenta[name].mul_(keeps).add_(gradient)
            weight.copy_(self._anchors[name]).sub_(gradient.add(momentum, alpha=keeps), alpha=rate)
            self._anchors[name].copy_(weight)
        if together():
            for buffer in self._module.buffers():
                dist.broadcast(buffer, src=0)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights of the last exchange, which are equal on every rank."""
        return {name: self._anchors.get(name, each) for name, each in self._named()}

    def local(self) -> dict[str, Tensor]:
        """Return the weights of this rank."""
        return dict(self._named())

    def state(self) -> State:
        """Return the state of the outer optimizer, which is equal on every rank."""
        return {"momenta": dict(self._momenta), "done": self._done}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: State | None) -> None:
        """Continue from an exchange of a checkpoint; without a state as if it were the first."""
        self.start(is_sent=False)
        for name, anchor in self._anchors.items():
            anchor.copy_(weights[name])
            if state is not None:
                self._momenta[name].copy_(state["momenta"][name])
        self._done = 0 if state is None else int(state["done"])

    def _named(self) -> Iterable[tuple[str, Tensor]]:
        return self._module.named_parameters()

    def _trained(self) -> list[tuple[str, Tensor]]:
        return [(name, each) for name, each in self._named() if each.requires_grad]
