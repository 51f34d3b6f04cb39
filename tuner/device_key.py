"""How the key of a device is written, such as `sm90-132sm-141gb`; imports nothing."""

MOST_DIGITS = 5


def key_parts(key: str) -> tuple[str, int, int] | None:
    """Compute capability, multiprocessors and memory class in GiB; None if it is no key."""
    parts = key.split("-")
    if len(parts) != 3:
        return None
    capability, sms, memory = parts
    if not (capability.startswith("sm") and sms.endswith("sm") and memory.endswith("gb")):
        return None
    numbers = capability[2:], sms[:-2], memory[:-2]
    if not all(digits.isascii() and digits.isdigit() for digits in numbers):
        return None
    if any(digits.startswith("0") for digits in numbers):  # nothing has none, or two spellings
        return None
    if len(numbers[0]) not in (2, 3) or max(map(len, numbers)) > MOST_DIGITS:
        return None
    return capability, int(numbers[1]), int(numbers[2])
