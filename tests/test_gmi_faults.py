"""Who hangs, who is only slow, and who may write what: faults of user-written GMIs."""

import time

import gmi_classes
import pytest
from test_gmi import manager_of, no_process_left

from doppler.core.errors import KernelError, WorkerHungError
from doppler.gmi import Package
from executor.experience.flow import WhenFull

pytestmark = pytest.mark.timeout(120)
NUMBER = [Package("number", "int64")]


def test_a_gmi_that_stops_within_a_send_that_nobody_waits_for_is_named():
    manager = manager_of("trainer", "agent", "agent", deadline_s=0.5)
    trainer = manager.add_gmi(gmi_classes.SteadyReceiver, "trainer", 0, {"stays": 400})
    agents = [
        manager.add_gmi(gmi_classes.StoppedSender, "agent", 1),
        manager.add_gmi(gmi_classes.SteadySender, "agent", 2, {"every_s": 0.0}),
    ]
    manager.add_channel(
        "experience", agents, [trainer], NUMBER, batch=1, when_full=WhenFull.drop_new
    )
    start = time.monotonic()
    with pytest.raises(WorkerHungError, match=r"none came from GMI 1 .*, in 'experience'"):
        manager.run(1, 4)
    assert manager.failed == (1,)
    assert time.monotonic() - start < 15
    assert no_process_left()


def test_a_gmi_that_stops_within_a_message_to_its_parent_is_named():
    manager = manager_of("agent", deadline_s=0.5)
    manager.add_gmi(gmi_classes.HalfSpeaker, "agent", 0)
    start = time.monotonic()
    with pytest.raises(WorkerHungError, match="none came from GMI 0"):
        manager.run(1, 1)
    assert time.monotonic() - start < 15
    assert no_process_left()


@pytest.mark.parametrize("batch", [1, 12])
def test_a_slow_producer_is_no_hung_one(batch):
    manager = manager_of("trainer", "agent", deadline_s=1.0)
    trainer = manager.add_gmi(gmi_classes.SteadyReceiver, "trainer", 0)
    agent = manager.add_gmi(gmi_classes.SteadySender, "agent", 1, {"every_s": 0.3})
    manager.add_channel("experience", [agent], [trainer], NUMBER, batch=batch)
    # 3.6 s, with a deadline of 1 s, whose slack for those who wait is 2 s.
    assert manager.run(1, 12)[trainer] == list(range(12))


def test_readers_of_weights_cannot_publish_them():
    manager = manager_of("trainer", "agent", deadline_s=5.0)
    trainer = manager.add_gmi(gmi_classes.Usurper, "trainer", 0)
    manager.add_weights("policy", trainer, [manager.add_gmi(gmi_classes.Usurper, "agent", 1)], 16)
    with pytest.raises(KernelError, match=r"(?s)GMI 1 .* has none as WeightPublisher"):
        manager.run(1, 1)
