"""One member of a small all-reduce whose sums are known: started by the probe as a worker is.

Usage: python -m executor.collectives.trial SPEC SHARED_FD STORE_FD; SPEC is a `MemberSpec` as JSON.
It prints "joined" when the members have met. The last line is {"text": what came out}, or
{"error": why nothing did, "blames": true if that is another member}.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.core.collective import AllReduceSchedule, Step, StepKind
from doppler.core.errors import DopplerError, ExecutionError, WorkerDiedError, WorkerHungError
from executor.collectives.kernels import CollectiveKernel
from executor.collectives.peers import Peers, WaitOptions, peers_bytes
from executor.collectives.select import open_all_reduce
from executor.collectives.shared import AllReduceLayout
from executor.launch.gpus import load_module
from executor.shared_memory import map_all
from executor.workers.accelerator import CUDA_DEVICE, open_accelerator
from executor.workers.share import GpuShare

JOINED = "joined"
DTYPE = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """What one member does.

    Attributes:
        kernel: Name of the kernel.
        member: Its position.
        parents: Processor that each member is cut from.
        num_elements: Length of every array.
        num_calls: All-reduces that are made and checked.
        deadline_s: Who is awaited for longer has failed.
        share: What it owns of a GPU; None for a core group.
    """

    kernel: str
    member: int
    parents: tuple[str, ...]
    num_elements: int
    num_calls: int
    deadline_s: float
    share: GpuShare | None = None

    def to_json(self) -> str:
        """Returns it as JSON."""
        return json.dumps(asdict(self))


def trial_layout(num_members: int, num_elements: int) -> AllReduceLayout:
    """Returns what lies in the shared memory; the members' lines for the end follow."""
    steps = (Step(StepKind.reduce, 0, tuple(range(num_members))),) if num_members > 1 else ()
    results = ((num_members if steps else 0,),) * num_members
    schedule = AllReduceSchedule(
        name="member 0 adds", num_members=num_members, num_chunks=1, steps=steps, results=results
    )
    return AllReduceLayout(schedule=schedule, num_elements=num_elements, dtype=DTYPE)


def trial_bytes(num_members: int, num_elements: int) -> int:
    """Returns the shared memory that a trial takes."""
    return trial_layout(num_members, num_elements).size_bytes + peers_bytes(num_members)


def read_spec(text: str) -> MemberSpec:
    """Returns the spec that a JSON text is of."""
    fields: dict[str, Any] = json.loads(text)
    share = fields.pop("share")
    if share is not None:
        share = GpuShare(**{**share, "split": tuple(share["split"])})
    parents = tuple(fields.pop("parents"))
    return MemberSpec(**fields, parents=parents, share=share)


def part_of(member: int, call: int, num_elements: int) -> npt.NDArray[np.float32]:
    """Returns what a member adds in a call: small integers, whose sums are exact in any order."""
    return ((np.arange(num_elements) + call) % 7 * (member + 1)).astype(np.float32)


def run_member(spec: MemberSpec, shared_fd: int, store_fd: int) -> str:
    """Takes part in all calls and checks each sum; returns what it saw, in words.

    Raises:
        DopplerError, RuntimeError: If the device is not what it was given, a member failed, or a
            sum is wrong.
    """
    accelerator = None if spec.share is None else open_accelerator(spec.share)[0]
    num_members = len(spec.parents)
    kernel = CollectiveKernel(spec.kernel)
    layout = trial_layout(num_members, spec.num_elements)
    memory, deadline_ns = map_all(shared_fd), int(spec.deadline_s * 1e9)
    options = WaitOptions(deadline_ns=deadline_ns, join_deadline_ns=deadline_ns)
    names = [f"member {member} on {parent}" for member, parent in enumerate(spec.parents)]
    store = (f"/proc/self/fd/{store_fd}", "trial")
    end = open_all_reduce(
        kernel, layout, memory, 0, spec.member, names, store, options, spec.parents
    )
    peers = Peers(memory, layout.size_bytes, names, spec.member, options)
    with contextlib.nullcontext() if accelerator is None else accelerator.active():
        peers.join()
        end.join()
        _say(JOINED)
        for call in range(spec.num_calls):
            values = _on_device(part_of(spec.member, call, spec.num_elements), kernel)
            end.all_reduce(values)
            _check_sum(_in_host_memory(values), call, num_members)
        # Who ends takes its memory along, which others may still read.
        peers.enter(1)
        for member in range(num_members):
            peers.wait_entered(member, 1)
        peers.leave(1)
        end.close()
    sums = f"{spec.num_calls} sums of {spec.num_elements} {DTYPE} over {num_members} are right"
    return sums if num_members > 1 else f"{sums}, and one process exchanges nothing"


def _on_device(values: npt.NDArray[np.float32], kernel: CollectiveKernel) -> Any:
    if not kernel.on_gpu:
        return values
    torch: Any = load_module("torch")
    return torch.from_numpy(values).to(CUDA_DEVICE)


def _in_host_memory(values: Any) -> npt.NDArray[np.float32]:
    return values if isinstance(values, np.ndarray) else np.asarray(values.cpu().numpy())


def _check_sum(values: npt.NDArray[np.float32], call: int, num_members: int) -> None:
    expected = part_of(0, call, len(values)) * (num_members * (num_members + 1) // 2)
    wrong = np.flatnonzero(values != expected)
    if len(wrong):
        first = int(wrong[0])
        raise ExecutionError(
            f"call {call} gave {values[first]:g} at element {first}, and the sum is "
            f"{expected[first]:g} ({len(wrong)} of {len(values)} elements are wrong)"
        )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _answering() -> Iterator[dict[str, Any]]:
    answer: dict[str, Any] = {}
    try:
        yield answer
    except (DopplerError, RuntimeError) as error:
        blames = isinstance(error, WorkerDiedError | WorkerHungError)
        answer.update({"error": str(error), "blames": blames})
    _say(f"\n{json.dumps(answer)}")


def main() -> None:
    """Runs one member."""
    with _answering() as answer:
        answer["text"] = run_member(read_spec(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)  # threads of a library that hangs are not waited for


if __name__ == "__main__":
    main()
