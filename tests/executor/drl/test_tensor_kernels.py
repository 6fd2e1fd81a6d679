"""The PPO job on tensors: what the kernels for cores give, wherever the tensors lie."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import Interpreter

from doppler.core.errors import ExecutionError
from doppler.core.job_mode import JobMode
from executor.drl import device_math, normalizer, ppo
from executor.drl.adam import AdamSegment, clip_scale
from executor.drl.config import PPOJobConfig
from executor.drl.device_math import DeviceAdamSegment
from executor.workers.accelerator import Accelerator

SMALL = PPOJobConfig(
    num_shards=2,
    envs_per_shard=6,
    horizon=8,
    chunk=4,
    hidden=(32, 16),
    epochs=2,
    num_trainers=2,
    num_segments=2,
)


class OnDevice(Interpreter):
    """Runs the job's tensor kernels; ops without one run on the host."""

    def __init__(self, config, torch_device="cpu"):
        super().__init__(config)
        self.torch_device = torch_device
        self.job.use_accelerator(Accelerator(torch_device=torch_device))
        self.groups = {name: self.job.create_group(name, 1) for name in self.groups}
        self.on_device = set()
        for op in self.ops:
            group = self.groups.get(op.group)
            kernel = self.job.bind_tensors(op.name, op.kind, group, 1)
            if kernel is None:
                kernel = self.job.bind(op.name, op.kind, group, 1)
            else:
                self.on_device.add(op.kind)
                kernel = self.with_copies(kernel)
            self.kernels[op.name] = kernel

    def with_copies(self, kernel):
        def call(iteration, inputs, outputs):
            there = [torch.from_numpy(array.copy()).to(self.torch_device) for array in inputs]
            results = [torch.from_numpy(array).to(self.torch_device) for array in outputs]
            kernel(iteration, there, results)
            for array, result in zip(outputs, results, strict=True):
                torch.from_numpy(array).copy_(result)

        return call


def assert_close(found, expected, names):
    """Compares every tensor of the last iteration, float32 but for statistics and flags."""
    for op, output in expected.before:
        kind = op.split("[", maxsplit=1)[0]
        if kind not in names:
            continue
        a, b = found.tensor(op, output), expected.tensor(op, output)
        # The policy vector ends in a normaliser, float64.
        narrow = 4 * expected.job.sizes.num_parameters if kind == "broadcast" else len(a)
        if (kind, output) in (("advantage", 1), ("reduce", 1)):
            narrow = 0
        for part, dtype in ((slice(narrow), np.float32), (slice(narrow, None), np.float64)):
            np.testing.assert_allclose(
                a[part].view(dtype), b[part].view(dtype), rtol=2e-3, atol=2e-4, err_msg=op
            )


@pytest.mark.parametrize("fused", [True, False])
def test_an_iteration_on_tensors_is_that_on_cores_to_rounding(fused):
    config = replace(SMALL, environment="pendulum", fused=fused)
    found, expected = OnDevice(config).run(1), Interpreter(config).run(1)
    rolling = {"rollout"} if fused else {"infer"}
    assert found.on_device == {"advantage", "grad", "reduce", "adam", "broadcast"} | rolling
    assert_close(found, expected, {"advantage", "grad", "reduce", "adam", "broadcast"})
    ours, theirs = found.metrics(), expected.metrics()
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "mean_reward"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("kind", ["truncated", "vtrace"])
def test_importance_weights_on_tensors_are_those_on_cores(kind):
    config = replace(SMALL, environment="pendulum", mode=JobMode.asynchronous, staleness=1)
    config = config.with_settings({"importance": kind})
    found, expected = OnDevice(config).run(1), Interpreter(config).run(1)
    assert_close(found, expected, {"advantage", "grad", "broadcast"})


def test_fused_and_unrolled_give_equal_bits_on_tensors():
    runs = [OnDevice(replace(SMALL, environment="pendulum", fused=f)).run(2) for f in (True, False)]
    assert runs[0].vector().tobytes() == runs[1].vector().tobytes()


def test_every_byte_that_cores_write_is_written_on_tensors():
    found, expected = OnDevice(SMALL).run(1), Interpreter(SMALL).run(1)
    for key, array in expected.before.items():
        # Buffers start as 0xFF, and no value has that word: what is left of it is padding.
        left = found.before[key].view(np.uint32) == 0xFFFFFFFF
        assert not np.any(left & (array.view(np.uint32) != 0xFFFFFFFF)), key
    for op in ("advantage[0]", "grad[0,0,0]", "reduce[0,0,0]", "adam[0,0,0]", "broadcast"):
        assert not np.isnan(found.tensor(op).view(np.float32)).any(), op  # buffers start as NaN


def test_nothing_is_wired_to_the_cpu():
    """On torch's meta device an operation that mixes devices raises, and nothing has values."""
    config = replace(SMALL, environment="pendulum", fused=False)
    job = Interpreter(config).job
    job.use_accelerator(Accelerator(torch_device="meta"))
    run = Interpreter(config)
    seen = set()
    for op in run.ops:
        if op.kind in seen or op.kind in ("env_step", "collect"):
            continue
        group = job.create_group(op.group, 1) if op.group else None
        kernel = job.bind_tensors(op.name, op.kind, group, 1)
        inputs = [
            torch.empty(job.output_bytes(i.op)[i.output], dtype=torch.uint8, device="meta")
            for i in op.inputs
        ]
        outputs = [
            torch.empty(size, dtype=torch.uint8, device="meta")
            for size in job.output_bytes(op.name)
        ]
        kernel(0, inputs, outputs)
        seen.add(op.kind)
    assert seen == {"infer", "advantage", "grad", "reduce", "adam", "broadcast"}


def test_optimizer_states_move_between_cores_and_devices():
    random = np.random.default_rng(0)
    start = random.normal(size=64).astype(np.float32)
    here, there = AdamSegment(start), DeviceAdamSegment(start, "cpu")
    for step in range(12):
        gradient = random.normal(size=64).astype(np.float32)
        scale = torch.tensor(0.5)
        here.step(gradient, 0.5, 0.01)
        there.step(torch.from_numpy(gradient), scale, 0.01)
        if step == 5:  # each goes on from the other's state
            states = here.export_state(), there.export_state()
            here, there = AdamSegment(start * 0), DeviceAdamSegment(start * 0, "cpu")
            here.import_state(states[1])
            there.import_state(states[0])
    np.testing.assert_allclose(there.parameters.numpy(), here.parameters, rtol=1e-5, atol=1e-6)
    with pytest.raises(ExecutionError, match="optimizer state 'm' must be float32"):
        there.import_state(here.export_state() | {"m": np.zeros(3, np.float32)})


def test_a_kernel_refuses_the_state_of_another_device():
    run = Interpreter(replace(SMALL, environment="pendulum"))
    run.job.use_accelerator(Accelerator(torch_device="cpu"))
    with pytest.raises(ExecutionError, match=r"'adam\[0,0,0\]' needs the state of its optimizer"):
        run.job.bind_tensors("adam[0,0,0]", "adam", run.groups["optimizer[0]"], 1)


def small_floats(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 10**6))
def test_the_formulas_on_tensors_are_those_on_arrays(steps, envs, seed):
    random = np.random.default_rng(seed)
    rewards, values = small_floats((steps, envs), seed), small_floats((steps, envs), seed + 1)
    last = small_floats(envs, seed + 2)
    terminated = random.random((steps, envs)) < 0.2
    truncated = ~terminated & (random.random((steps, envs)) < 0.2)
    arrays = (rewards, values, last, terminated, truncated)
    np.testing.assert_allclose(
        device_math.generalized_advantages(*map(torch.from_numpy, arrays), 0.97, 0.9).numpy(),
        ppo.generalized_advantages(*arrays, 0.97, 0.9),
        rtol=1e-5,
        atol=1e-5,
    )
    rows = small_floats((steps * envs, 3), seed) * 20
    moments = normalizer.merge_moments(
        [normalizer.initial_moments(3), normalizer.measure_moments(rows)]
    )
    np.testing.assert_allclose(
        device_math.measure_moments(torch.from_numpy(rows)).numpy(),
        normalizer.measure_moments(rows),
        rtol=1e-9,
        atol=1e-9,
    )
    far = rows * 30  # beyond the clip, too
    np.testing.assert_allclose(
        device_math.normalize(torch.from_numpy(far), torch.from_numpy(moments)).numpy(),
        normalizer.normalize(far, moments, np.empty_like(far)),
        rtol=1e-5,
        atol=1e-5,
    )
    norms = [float(x) for x in random.random(3) * 9]
    tensors = [torch.tensor([x], dtype=torch.float64) for x in norms]
    for limit in (0.1, 1.0, 100.0):  # the last is above every norm
        assert float(device_math.clip_scale(tensors, limit)) == pytest.approx(
            clip_scale(norms, limit)
        )
