import logging
import os

import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec import UserError
from turbospec.policy import load_controller
from turbospec.policy.reload import ReloadingPolicy


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "policy.yaml"
    write(path, 3)
    return path


def write(path, draft_length):
    path.write_text(f"version: 1\npolicy: static\ndraft_length: {draft_length}\n")


def planned(policy, now):
    return int(policy.plan(make_view(1, now=now)).draft_lengths[0])


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_changed_file_takes_effect_at_the_next_plan(file):
    policy = ReloadingPolicy(file, check_seconds=0.0)
    assert planned(policy, 0.0) == 3
    write(file, 5)
    assert planned(policy, 0.1) == 5


def test_looks_no_more_often_than_told(file):
    policy = ReloadingPolicy(file, check_seconds=2.0)
    assert planned(policy, 10.0) == 3
    write(file, 5)
    assert planned(policy, 11.9) == 3
    assert planned(policy, 12.0) == 5


def test_a_change_of_equal_size_is_seen_by_its_time(file):
    policy = ReloadingPolicy(file, check_seconds=0.0)
    write(file, 4)
    os.utime(file, ns=(1, 1))
    assert planned(policy, 0.0) == 4


def test_a_change_of_the_guard_waits_for_the_next_start(file, caplog):
    policy = ReloadingPolicy(file, check_seconds=0.0)
    write(file, 12)
    assert planned(policy, 0.0) == 12
    assert warnings(caplog) == []
    file.write_text(file.read_text() + "guard: {cooldown_steps: 7}\n")
    assert planned(policy, 0.1) == 12
    assert warnings(caplog) == [f"{file}: `guard` has changed, which takes effect at the next start"]


def test_a_replaced_file_is_seen(file, tmp_path):
    policy = ReloadingPolicy(file, check_seconds=0.0)
    new = tmp_path / "new.yaml"
    write(new, 8)
    new.replace(file)
    assert planned(policy, 0.0) == 8


def test_an_invalid_file_is_refused_with_one_warning_and_a_mended_one_taken(file, caplog):
    policy = ReloadingPolicy(file, check_seconds=0.0)
    write(file, -1)
    assert [planned(policy, now) for now in range(5)] == [3] * 5
    assert warnings(caplog) == [
        f"policy not reloaded, the previous one stays: {file}:3: draft_length: "
        "input should be greater than or equal to 0 (got -1)"
    ]
    write(file, 15)
    assert planned(policy, 6.0) == 15


def test_a_vanished_file_keeps_the_policy_with_one_warning(file, caplog):
    policy = ReloadingPolicy(file, check_seconds=0.0)
    file.unlink()
    assert [planned(policy, now) for now in range(5)] == [3] * 5
    assert warnings(caplog) == [f"policy not reloaded, the previous one stays: {file}: no such policy file"]
    write(file, 2)
    assert planned(policy, 6.0) == 2


@pytest.mark.parametrize("place", ["folder", "pipe", "device"])
def test_a_file_that_is_none_any_more_keeps_the_policy(file, place, caplog):
    policy = ReloadingPolicy(file, check_seconds=0.0)
    file.unlink()
    match place:
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case _:
            file.symlink_to("/dev/zero")
    assert [planned(policy, now) for now in range(5)] == [3] * 5
    (warning,) = warnings(caplog)
    assert "name a policy file" in warning


def test_a_file_that_is_half_written_is_read_again(file, caplog):
    policy = ReloadingPolicy(file, check_seconds=0.0)
    whole = file.read_text().replace("draft_length: 3", "draft_length: 5")
    for end in (0, 10, 25, 40):
        file.write_text(whole[:end])
        assert planned(policy, 0.0) == 3
    file.write_text(whole)
    assert planned(policy, 0.0) == 5
    assert len(warnings(caplog)) == 4


def test_observations_reach_the_policy(file):
    file.write_text("version: 1\npolicy: heuristic\nstart: 5\n")
    policy = ReloadingPolicy(file)
    view = make_view(1)
    policy.plan(view)
    policy.observe(make_outcome(view, 5, 5))
    assert planned(policy, 0.0) == 7


def test_a_wrong_file_at_the_start_is_the_users_to_mend(file):
    write(file, -1)
    with pytest.raises(UserError, match="draft_length"):
        ReloadingPolicy(file)


def test_a_controller_follows_its_file_where_asked_to(file, caplog):
    following, fixed = load_controller(file, reload=True), load_controller(file)
    write(file, 5)
    assert (planned(following, 0.0), planned(fixed, 0.0)) == (5, 3)
    write(file, -1)
    assert [planned(following, now) for now in (2.0, 4.0)] == [5, 5]
    assert len(warnings(caplog)) == 1
    assert following.stats.guard_trips == 0


def test_a_clock_that_goes_back_does_not_end_the_following(file):
    policy = ReloadingPolicy(file, check_seconds=2.0)
    assert planned(policy, 1e12) == 3
    write(file, 5)
    assert planned(policy, 1.0) == 5
