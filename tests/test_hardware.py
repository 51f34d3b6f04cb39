"""What the key of a device tells, and which keys are none."""

import pytest

from tuner.hardware import DeviceClass, device_class


def test_a_key_tells_capability_multiprocessors_and_memory() -> None:
    assert device_class("sm90-132sm-141gb") == DeviceClass("sm90", 132, 141)
    assert device_class("sm120-188sm-96gb") == DeviceClass("sm120", 188, 96)


@pytest.mark.parametrize(
    "key",
    [
        *("", "sm90", "NVIDIA H200", "sm90-132sm", "sm90-132-141", "sm9-132sm-141gb"),
        *("sm90-0sm-80gb", "sm90-132sm-0gb", "sm90-00132sm-141gb", "sm90-132sm-0141gb"),
        *("sm90-٣sm-141gb", "sm90-1000000sm-141gb", "sm90--132sm-141gb", "sm90-132sm-141gb-"),
    ],
)
def test_what_names_no_device_is_no_key(key: str) -> None:
    assert device_class(key) is None


@pytest.mark.parametrize(("sms", "hopper"), [(1, True), (132, True), (144, True), (145, False)])
def test_no_hopper_part_has_more_multiprocessors_than_its_die(sms: int, hopper: bool) -> None:
    told = device_class(f"sm90-{sms}sm-80gb")
    assert told is not None
    assert told.is_hopper is hopper
