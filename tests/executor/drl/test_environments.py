"""Vector environments: sizes, sharding, threads, exact export, and errors."""

import sys

import gymnasium
import numpy as np
import pytest

from doppler.core.errors import ConfigError, ExecutionError
from executor.drl import warp_physics
from executor.drl.environments import TASKS, make_environment
from executor.drl.gym_env import GymEnvironment
from executor.drl.mujoco_env import MujocoEnvironment
from executor.drl.pendulum import Pendulum
from executor.drl.torso import observe_torso, progress
from executor.drl.vector_env import EnvironmentStep, check_environment, environment_spec

NAMES = sorted(TASKS)


def actions_for(environment, steps, seed=0):
    shape = (steps, environment.num_envs, environment.act_dim)
    return np.random.default_rng(seed).uniform(-1.2, 1.2, shape).astype(np.float32)


def play(environment, actions):
    """Returns every observation, reward and end as one byte string."""
    history = []
    for action in actions:
        step = environment.step(action)
        history += [array.copy() for array in step]
    return b"".join(array.tobytes() for array in history)


@pytest.mark.parametrize(
    ("name", "obs_dim", "act_dim"),
    [
        ("ant", 60, 8),
        ("anymal", 48, 12),
        ("ball_balance", 24, 3),
        ("franka_cabinet", 23, 9),
        ("humanoid", 108, 21),
        ("pendulum", 4, 1),
        ("shadow_hand", 211, 20),
    ],
)
def test_sizes_and_protocol(name, obs_dim, act_dim):
    environment = make_environment(name, 3, 0)
    assert (environment.obs_dim, environment.act_dim) == (obs_dim, act_dim)
    check_environment(environment, seed=0)
    spec = environment_spec(lambda n, first: make_environment(name, n, first))
    assert (spec.obs_dim, spec.act_dim) == (obs_dim, act_dim)


@pytest.mark.parametrize("name", NAMES)
def test_trajectories_do_not_depend_on_sharding(name):
    whole = make_environment(name, 6, 0)
    shards = [
        make_environment(name, 1, 0),
        make_environment(name, 2, 1),
        make_environment(name, 3, 3),
    ]
    first = whole.reset(7).copy()
    parts = [shard.reset(7).copy() for shard in shards]
    assert first.tobytes() == np.concatenate(parts).tobytes()
    for action in actions_for(whole, 40):
        expected = whole.step(action)
        cuts = np.split(action, [1, 3])
        results = [shard.step(cut) for shard, cut in zip(shards, cuts, strict=True)]
        for field, array in zip(EnvironmentStep._fields, expected, strict=True):
            together = np.concatenate([getattr(result, field) for result in results])
            assert array.tobytes() == together.tobytes(), field


@pytest.mark.parametrize("name", NAMES)
def test_trajectories_do_not_depend_on_threads(name):
    one, three = make_environment(name, 5, 0), make_environment(name, 5, 0)
    three.set_threads(3)
    one.reset(1), three.reset(1)
    actions = actions_for(one, 30)
    assert play(one, actions) == play(three, actions)
    three.set_threads(1)
    assert play(one, actions) == play(three, actions)
    three.close()


@pytest.mark.parametrize("name", NAMES)
def test_an_imported_state_goes_on_bit_for_bit(name):
    stays = make_environment(name, 4, 2)
    stays.reset(3)
    actions = actions_for(stays, 60)
    play(stays, actions[:25])
    moved = make_environment(name, 4, 2)
    moved.import_state(stays.export_state())
    assert play(stays, actions[25:]) == play(moved, actions[25:])


def test_the_clock_of_an_episode_moves_with_it():
    stays, moved = (MujocoEnvironment(Pendulum(episode_limit=8), 2, 0) for _ in range(2))
    stays.reset(0)
    calm = np.zeros((8, 2, 1), np.float32)
    play(stays, calm[:5])
    moved.import_state(stays.export_state())
    ends = [moved.step(action).truncated.all() for action in calm[:3]]
    assert ends == [False, False, True]


def test_exported_arrays_are_copies():
    environment = make_environment("pendulum", 2, 0)
    environment.reset(0)
    state = environment.export_state()
    before = state["physics"].copy()
    play(environment, actions_for(environment, 3))
    assert np.array_equal(state["physics"], before)
    assert environment.state_bytes == sum(array.nbytes for array in state.values())


def test_seed_and_global_id_decide_the_first_observation():
    environment = make_environment("ant", 2, 0)
    first = environment.reset(0).copy()
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, environment.reset(1))
    assert np.array_equal(first, environment.reset(0))


def test_episodes_differ_and_reset_themselves():
    environment = make_environment("pendulum", 1, 0)
    start = environment.reset(0).copy()
    push = np.ones((1, 1), np.float32)
    for _ in range(200):
        step = environment.step(push)
        if step.terminated[0]:
            break
    assert step.terminated[0]
    assert not step.truncated[0]
    assert abs(step.obs[0, 1]) <= 0.01  # upright again: the observation is the next episode's
    assert not np.array_equal(step.obs, start)


def test_the_time_limit_truncates():
    environment = MujocoEnvironment(Pendulum(episode_limit=5), 2, 0)
    environment.reset(0)
    calm = np.zeros((2, 1), np.float32)
    ends = [environment.step(calm) for _ in range(4)]
    assert not any(step.truncated.any() for step in ends)
    last = environment.step(calm)
    assert last.truncated.all()
    assert not last.terminated.any()
    assert (environment.export_state()["elapsed"] == 0).all()


def test_a_pole_that_leans_terminates_and_pays_one_per_step():
    environment = make_environment("pendulum", 1, 0)
    environment.reset(0)
    state = environment.export_state()
    state["physics"][0, 2] = 0.25  # time, x, angle
    environment.import_state(state)
    step = environment.step(np.zeros((1, 1), np.float32))
    assert step.terminated[0]
    assert step.reward[0] == 1.0


def test_broken_physics_ends_the_episode():
    environment = make_environment("ant", 2, 0)
    environment.reset(0)
    state = environment.export_state()
    state["physics"][1, -1] = 1e12
    environment.import_state(state)
    step = environment.step(np.zeros((2, 8), np.float32))
    assert step.terminated.tolist() == [False, True]
    assert step.reward[1] == 0.0
    assert np.isfinite(step.obs).all()


def test_a_fallen_ant_terminates_with_the_death_cost():
    environment = make_environment("ant", 1, 0)
    environment.reset(0)
    state = environment.export_state()
    state["physics"][0, 3] = 0.27  # on its back: height, then the quaternion of half a turn
    state["physics"][0, 4:8] = [0.0, 1.0, 0.0, 0.0]
    environment.import_state(state)
    step = environment.step(np.zeros((1, 8), np.float32))
    assert step.terminated[0]
    assert step.reward[0] == -2.0


def changed(name, **columns):
    """Returns one step without action from a first state in which some of physics is replaced."""
    environment = make_environment(name, 1, 0)
    environment.reset(0)
    state = environment.export_state()
    for where, value in columns.items():
        state["physics"][0, int(where.removeprefix("at"))] = value
    environment.import_state(state)
    return environment.step(np.zeros((1, environment.act_dim), np.float32))


def test_an_anymal_on_its_side_and_a_ball_beside_the_tray_and_a_lost_block_terminate():
    half = np.sqrt(0.5)
    assert changed("anymal", at4=half, at5=half, at6=0.0, at7=0.0).terminated[0]  # roll of 90 deg
    assert changed("ball_balance", at14=2.0, at16=0.12).terminated[0]  # x and height of the ball
    lost = changed("shadow_hand", at25=1.0)  # x of the block
    assert lost.terminated[0]
    assert lost.reward[0] == -20.0


def test_goals_are_drawn_per_episode_and_move_with_the_state():
    environment = make_environment("anymal", 2, 0)
    environment.reset(0)
    goals = environment.export_state()["goals"]
    assert goals.shape == (2, 3)
    assert not np.array_equal(goals[0], goals[1])
    state = environment.export_state()
    state["physics"][0, 3] = 0.1  # the first one lies on the ground
    environment.import_state(state)
    environment.step(np.zeros((2, 12), np.float32))
    after = environment.export_state()["goals"]
    assert not np.array_equal(after[0], goals[0])
    assert np.array_equal(after[1], goals[1])
    assert "goals" not in make_environment("ant", 1, 0).export_state()


def test_an_open_drawer_pays_and_the_first_observation_knows_where_the_handle_is():
    environment = make_environment("franka_cabinet", 1, 0)
    first = environment.reset(0)
    assert 0.05 < np.linalg.norm(first[0, 18:21]) < 0.5  # m from gripper to handle
    closed = changed("franka_cabinet").reward[0]
    ajar = changed("franka_cabinet", at10=0.1).reward[0]
    # 7.5 per m (half as much again with the fingers around it), 0.5 for ajar; the handle is nearer.
    assert 7.5 * 0.1 + 0.5 < ajar - closed < 1.5 * 7.5 * 0.1 + 0.5 + 0.5
    # The open drawer's handle is before the fingers, which stand in the drawer's front.
    assert changed("franka_cabinet", at10=0.3).reward[0] == -1.0


def test_an_arm_that_reaches_grips_and_pulls_opens_the_drawer_and_is_paid_for_it():
    # Joint targets about the ready pose (rad) that put the gripper x metres before the cabinet, at
    # the height of the handle and turned to it: inverse kinematics of the model.
    before, at, half, out = (
        np.array([0.0, a, 0.0, b, 0.0, c, -0.03, 0.0, 0.0], np.float32) / 1.2
        for a, b, c in [
            (0.22, 0.29, -0.07),
            (0.66, 0.96, -0.3),
            (-0.09, -0.11, 0.01),
            (-0.7, -0.64, -0.06),
        ]
    )
    environment = make_environment("franka_cabinet", 1, 0)
    environment.reset(0)
    rewards = []
    for start, end, grip, steps in [
        (before, before, 1.0, 40),
        (before, at, 1.0, 40),
        (at, at, -1.0, 30),
        (at, half, -1.0, 60),
        (half, out, -1.0, 80),
    ]:
        for k in range(steps):
            actions = start + (end - start) * (k + 1) / steps
            actions[7:] = grip
            step = environment.step(actions[None].astype(np.float32))
        rewards.append(float(step.reward[0]))
    assert step.obs[0, 21] > 0.3  # m that the drawer is open
    assert np.all(np.diff(rewards) > 0.3)  # every stage is worth more than the one before it


def test_torso_by_hand():
    # Turned by +90 degrees about z: its x axis points along world y, away from the goal at +x.
    half = np.sqrt(0.5)
    qpos = np.array([[0.0, 0.0, 0.5, half, 0.0, 0.0, half]])
    qvel = np.array([[0.0, 2.0, 0.0, 0.1, 0.2, 0.3]])
    torso = observe_torso(qpos, qvel)
    np.testing.assert_allclose(torso.velocity, [[2.0, 0.0, 0.0]], atol=1e-12)
    np.testing.assert_allclose(torso.angular_velocity, [[0.1, 0.2, 0.3]])
    np.testing.assert_allclose(
        [torso.yaw[0], torso.roll[0], torso.angle_to_target[0], torso.up[0], torso.heading[0]],
        [np.pi / 2, 0.0, -np.pi / 2, 1.0, 0.0],
        atol=1e-12,
    )


def test_progress_is_speed_towards_the_goal():
    before, after = np.array([[0.0, 0.0]]), np.array([[0.02, 0.0]])
    np.testing.assert_allclose(progress(before, after, 0.01), [2.0], rtol=1e-9)


def test_state_of_another_environment_is_refused():
    ant, two = make_environment("ant", 1, 0), make_environment("ant", 2, 0)
    with pytest.raises(ExecutionError, match=r"'physics' must be float64\[2, 30\]"):
        two.import_state(ant.export_state())
    with pytest.raises(ExecutionError, match="has nothing"):
        two.import_state({})


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'humanoid'"):
        make_environment("humanoide", 1, 0)


def test_gymnasium_ids_work_and_sharding_changes_nothing():
    environment = make_environment("gym:Pendulum-v1", 2, 0)
    check_environment(environment, 0)
    assert (environment.obs_dim, environment.act_dim) == (3, 1)
    shard = make_environment("gym:Pendulum-v1", 1, 1)
    assert np.array_equal(environment.reset(4)[1], shard.reset(4)[0])
    for _ in range(200):
        step = environment.step(np.ones((2, 1), np.float32))
        alone = shard.step(np.ones((1, 1), np.float32))
    assert step.truncated.all()
    assert np.array_equal(step.obs[1], alone.obs[0])  # the next episode's, from its own seed
    environment.close()


@pytest.mark.parametrize("steps", [0, 1, 57, 230])
def test_a_gymnasium_environment_moves_by_playing_its_episodes_again(steps):
    name = "gym:InvertedPendulum-v5"
    stays, moved = (make_environment(name, 3, 2) for _ in range(2))
    stays.reset(5)
    actions = actions_for(stays, steps + 40)
    play(stays, actions[:steps])
    moved.import_state(stays.export_state())
    assert play(stays, actions[steps:]) == play(moved, actions[steps:])


def test_a_gymnasium_environment_that_does_not_repeat_itself_is_not_moved():
    class Drifting(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        time = 0

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            Drifting.time += 1
            return np.full(1, Drifting.time, np.float32), 0.0, False, False, {}

    stays, moved = GymEnvironment(Drifting, 1, 0), GymEnvironment(Drifting, 1, 0)
    stays.reset(0)
    play(stays, actions_for(stays, 3))
    with pytest.raises(ExecutionError, match="does not show what it showed before"):
        moved.import_state(stays.export_state())
    with pytest.raises(ExecutionError, match=r"'obs' must have shape \[1, 1\], but .* has nothing"):
        moved.import_state({name: a for name, a in stays.export_state().items() if name != "obs"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gym:NoSuchThing-v0", "gymnasium cannot make 'NoSuchThing-v0'"),
        ("gym:CartPole-v1", "only boxes of floats are supported"),
    ],
)
def test_unfit_gymnasium_ids_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        make_environment(name, 1, 0)


def test_a_gymnasium_environment_that_lacks_a_package_is_told():
    gymnasium.register(id="NeedsMore-v0", entry_point="no_such_module_here:Environment")
    with pytest.raises(ConfigError, match="needs a package that is not installed"):
        make_environment("gym:NeedsMore-v0", 1, 0)


class Broken:
    num_envs, obs_dim, act_dim = 2, 3, 1

    def __init__(self, obs, ends=(False, False)):
        self.obs, self.ends = obs, np.array(ends)

    def reset(self, seed):
        return self.obs

    def step(self, actions):
        return EnvironmentStep(self.obs, np.zeros(2, np.float32), self.ends, self.ends)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Broken(np.zeros((2, 4), np.float32)), r"must be float32\[2, 3\], not float32\[2, 4\]"),
        (Broken(np.zeros((2, 3))), "not float64"),
        (Broken([[0.0] * 3] * 2), "must be a numpy array, not list"),
        (Broken(np.full((2, 3), np.nan, np.float32)), "must be finite"),
        (Broken(np.zeros((2, 3), np.float32), (True, False)), "terminated and truncated"),
    ],
)
def test_the_check_names_what_is_wrong(environment, message):
    with pytest.raises(ExecutionError, match=message):
        check_environment(environment, 0)


def test_mujoco_warp_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setattr(warp_physics, "_load_warp", warp_physics._load_warp.__wrapped__)
    monkeypatch.setitem(sys.modules, "warp", None)
    with pytest.raises(ConfigError, match=r"pip install 'doppler-placement\[warp\]'"):
        make_environment("mujoco_warp:ant", 1, 0)
