"""A stand-in for a CUDA graph where there is no GPU: a recorder, never a speed-up. Chapter 4.

It runs a step once, notes each operation with the memory and the Python numbers that it had, and leaves the world as
found, since a capture executes nothing. A replay repeats the notes on that memory with those numbers; the step's Python
does not run again. So most of what a graph gets wrong goes wrong here too; `UNSEEN` says what does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, NoReturn, TypeVar
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map_only

T = TypeVar("T")

UNSEEN = (
    "Speed: a replay here runs the same operations as the step, and copies their results besides.",
    "Capturing: a capture executes nothing; here the step runs once, and what it wrote is put back.",
    "Results before the first replay: undefined in a graph; NaN or the largest integer here.",
    "Streams and asynchronous copies: all runs in order; a kernel escapes only where `escaping()` says so.",
    "An escaped kernel's inputs: at a capture nothing has computed them; here they hold the recording's values.",
    "Memory: a graph reuses a temporary's address and reads what was freed; here all stays alive and apart.",
    "Workspaces of libraries, cuBLAS's above all, which graphs share.",
    "First times: what compiles, tunes or sets itself up within a capture fails there, not here.",
    "Copies between host and device: a CPU has none; only .cpu(), .numpy() and data from Python are told.",
    "Random numbers: a registered generator draws anew in each replay, others are refused; here all draw the same.",
    "The allocator's statistics, running out of memory, and other threads.",
)
WAITS = "the host would wait for the device"
SHAPES = f"a shape depends on values, and {WAITS}"
UPLOADS = f"the host's data would be copied, and {WAITS}"
# What makes no operation on a CPU, so that the dispatcher cannot see it.
HOST: tuple[tuple[Any, str, str], ...] = (
    *((Tensor, name, WAITS) for name in ("tolist", "cpu", "numpy", "__array__", "__repr__")),
    (torch, "tensor", UPLOADS),
    (torch.cuda, "synchronize", WAITS),
)


class CaptureRefused(RuntimeError):
    """A CUDA capture would not allow what the step does."""


class FakeGraph:
    """What a step did, to be done again. It keeps all memory involved alive."""

    unseen: tuple[str, ...] = UNSEEN

    def __init__(self) -> None:
        self.operations: list[str] = []  # names, in order; views and bare allocations launch nothing and are left out
        self._calls: list[Callable[[], object]] = []

    @torch.inference_mode()  # the mode in which an engine's tensors may be written
    def replay(self) -> None:
        """Run the operations again, on the memory and with the numbers of the recording, into the same results."""
        for call in self._calls:
            call()

    def _note(self, name: str, call: Callable[[], object]) -> None:
        self.operations.append(name)
        self._calls.append(call)


class FakeRecorder:
    """Takes the place of `graphs.CudaRecorder` on a machine without a GPU."""

    def warm(self, step: Callable[[], object]) -> None:
        """Run the step."""
        step()

    def record(self, step: Callable[[], object]) -> FakeGraph:
        """A recording of the step."""
        return record(step)[0]


def record(step: Callable[[], T]) -> tuple[FakeGraph, T]:
    """Record one call of `step`; return its graph and its result, which holds poison until the first replay.

    Memory from before is left as found, and so are random generators, also where the step fails.
    Raises CaptureRefused where a capture would fail: also if the step swallows that error, or records within itself.
    """
    if outer := _recorder():
        outer.refuse("record() inside a recorded step", "one capture is running already")
    try:
        from triton.runtime.jit import KernelInterface  # no sooner: as it is imported, it looks whether to interpret
    except ImportError:  # no Triton here, so there are no launches to be seen
        KernelInterface = type("NoKernels", (), {"__getitem__": None})
    recorder, plain = _Recorder(), KernelInterface.__getitem__

    def launcher(kernel: Any, grid: Any) -> Callable[..., None]:  # of kernel[grid](...)
        return partial(recorder.launch, kernel, plain(kernel, _first_of(grid) if callable(grid) else grid))

    try:
        with ExitStack() as stack:
            for owner, name, reason in HOST:
                stack.enter_context(
                    patch.object(owner, name, partial(recorder.refuse, f"{owner.__name__}.{name}()", reason))
                )
            stack.enter_context(patch.object(KernelInterface, "__getitem__", launcher))
            stack.enter_context(_AsOnADevice())  # type: ignore[no-untyped-call]
            stack.enter_context(recorder)
            result = step()
        if recorder.refusal:
            raise recorder.refusal
    finally:
        recorder.put_back()
    recorder.poison()
    return recorder.graph, result


def escaping() -> AbstractContextManager[object]:
    """Imitates, in a step, kernels on a stream that the capture does not follow: they run once, and in no replay."""
    recorder = _recorder()
    return patch.object(recorder, "escaping", True) if recorder else nullcontext()


class _AsOnADevice(TorchFunctionMode):
    """Calls operations as CUDA has them where a CPU's would look at values first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.one_hot and (width := (*args, -1)[1] if not kwargs else kwargs.get("num_classes", -1)) > 0:
            index = args[0] if args else kwargs["input"]
            return index.new_zeros(*index.shape, width).scatter_(-1, index[..., None], 1)
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation on its way to the kernel, below autograd."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = FakeGraph()
        self.refusal: CaptureRefused | None = None
        self.escaping = False
        self._made: dict[int, Tensor] = {}  # by address, here and below: what the step's operations made
        self._escaped: dict[int, Tensor] = {}  # what escaped operations know
        self._numbers: dict[int, Tensor] = {}  # Python numbers as tensors, still on the host
        self._found: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}  # memory, and what was in it
        self._states: list[tuple[torch.Generator, Tensor]] = []  # of generators, before each use

    def refuse(self, name: str, reason: str, *_: object, **__: object) -> NoReturn:
        self.refusal = CaptureRefused(f"a capture refuses {name}: {reason}")
        raise self.refusal

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        run = partial(func, *args, **(kwargs or {}))
        if self.escaping:
            result = run()
            self._escaped |= _by_address([args, kwargs, result])
            return result
        with self:  # an operation that is made of others is seen as these
            if (result := func.decompose(*args, **run.keywords)) is not NotImplemented:
                return result
        self._check(func, args)
        if torch.Tag.inplace_view in func.tags:  # another shape for the same memory
            return run()
        again, old = _frozen(run), _by_address([args, kwargs])
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | run.keywords
        written = [given.get(a.name) for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
        self._keep(_by_address(written))
        if torch.Tag.nondeterministic_seeded in func.tags:
            generator = given.get("generator") or torch.default_generator
            self._states.append((generator, generator.get_state()))
            again = partial(_draw_again, again, *self._states[-1])
        result = run()
        places = [t.detach() if isinstance(t, Tensor) and _address(t) not in old else None for t in tree_leaves(result)]
        self._made |= (made := _by_address(places))
        if (made or written) and "empty" not in func._schema.name:  # more than a view or an allocation
            self.graph._note(str(func), partial(_run_again, again, places))
        return result

    def _check(self, func: Any, args: Sequence[Any]) -> None:
        """Refuse what would stop a capture."""
        name = func._schema.name
        by_mask = "index" in name and any(t.dtype == torch.bool for t in _by_address(args[1]).values())
        by_number = not self._numbers.keys().isdisjoint(_by_address(args))
        if name in {"aten::_local_scalar_dense", "aten::equal", "aten::allclose"}:
            self.refuse(str(func), f"a value goes to Python (.item(), int(), bool(), if), and {WAITS}")
        if by_mask and not by_number:  # `x[mask] = 0` is a kernel of its own, which needs no indices
            self.refuse(f"{func} by a mask", SHAPES)
        if torch.Tag.dynamic_output_shape in func.tags and name != "aten::index":
            self.refuse(str(func), SHAPES)
        if by_number and not by_mask and name in {"aten::copy_", "aten::index_put_"}:
            self.refuse(f"{func} of a Python number", UPLOADS)
        if name == "aten::lift_fresh":
            if args[0].dim():
                self.refuse(f"{func} (a list or an array becomes a tensor)", UPLOADS)
            self._numbers |= _by_address(args)

    def launch(self, kernel: Any, run: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """A Triton kernel, which the dispatcher does not see. It may write into every tensor that it is given."""
        known = _by_address([args, kwargs])
        with _disable_current_modes():
            if self.escaping:
                self._escaped |= known
            else:
                self._keep(known)
                self.graph._note(f"triton.{kernel.fn.__name__}", _frozen(partial(run, *args, **kwargs)))
            run(*args, **kwargs)

    def _keep(self, tensors: dict[int, Tensor]) -> None:
        """Copy memory from before the step, ahead of the first write into it."""
        for address in tensors.keys() - self._made.keys() - self._found.keys():
            memory = tensors[address].untyped_storage()
            self._found[address] = memory, memory.clone()  # type: ignore[no-untyped-call]

    def put_back(self) -> None:
        """Leave memory and generators as they were before the step."""
        for memory, content in self._found.values():
            memory.copy_(content)
        for generator, state in reversed(self._states):
            generator.set_state(state)

    @torch.inference_mode()
    def poison(self) -> None:
        """Overwrite what the step computed: until the first replay a graph's results are undefined."""
        for address in self._made.keys() - self._escaped.keys():
            tensor = self._made[address]
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                tensor.fill_(torch.nan)
            elif tensor.dtype != torch.bool:
                tensor.fill_(torch.iinfo(tensor.dtype).max)


def _recorder() -> _Recorder | None:
    """The recording that is running, if any."""
    return next((mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, _Recorder)), None)


def _run_again(operation: Callable[[], Any], places: Sequence[Tensor | None]) -> None:
    """Put new results where those of the recording lie; None is for a result that is an argument, or a view of one."""
    for result, place in zip(tree_leaves(operation()), places, strict=True):
        if place is not None:
            place.copy_(result)


def _draw_again(operation: Callable[[], Any], generator: torch.Generator, state: Tensor) -> Any:
    """The recording's random numbers once more: nobody advances the generator (defect G18)."""
    now = generator.get_state()
    generator.set_state(state)
    result = operation()
    generator.set_state(now)
    return result


def _frozen(call: partial[Any]) -> partial[Any]:
    """The call on aliases of its tensors: what later gives a tensor another shape, or other memory, changes nothing."""
    args, kwargs = tree_map_only(Tensor, Tensor.detach, (call.args, call.keywords))
    return partial(call.func, *args, **kwargs)


def _first_of(grid: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What the function gives the first time, for ever: a graph holds the grid's numbers."""
    kept: dict[str, Any] = {}
    return lambda meta: kept.setdefault("grid", grid(meta))


def _by_address(tree: Any) -> dict[int, Tensor]:
    """The tensors of lists and dicts by where their memory begins, which views share."""
    return {_address(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
