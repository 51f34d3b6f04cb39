"""Over a hundred requests made by hand that no service should take, each for its own reason."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOKEN = "a-token"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
ID = "0123456789abcdef" * 4


@dataclass(frozen=True)
class Bad:
    """A request and the status that it must be refused with."""

    status: int
    method: str
    url: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def posted(url: str, body: Any, status: int = 422, headers: Mapping[str, str] | None = None) -> Bad:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    usual = {"Content-Type": "application/json", **(AUTHORIZED if url == "/runs" else {})}
    return Bad(status, "POST", url, raw, {**usual, **(headers or {})})


def batch(**changes: Any) -> dict[str, Any]:
    return {"shapes": [{"m": 8, "n": 8, "k": 8}], **changes}


def shaped(**changes: Any) -> dict[str, Any]:
    return {"shapes": [{"m": 8, "n": 8, "k": 8, **changes}]}


LOOKUPS = [
    # Types.
    *[Bad(422, "GET", f"/best-config?m={m}&n=8&k=8") for m in ("one", "1.0", "1e3", "0x10", "")],
    *[Bad(422, "GET", f"/best-config?m={m}&n=8&k=8") for m in ("true", "null", "[1]", "%7B%7D")],
    # Ranges, and the edges of 32 and 64 bits.
    *[Bad(422, "GET", f"/best-config?m=8&n={n}&k=8") for n in (0, -1, 2**31, 2**32, 2**53)],
    *[Bad(422, "GET", f"/best-config?m=8&n={n}&k=8") for n in (2**63 - 1, 2**63, 2**64, -(2**63))],
    Bad(422, "GET", "/best-config?m=8&n=8&k=" + "9" * 5000),
    Bad(422, "GET", "/best-config?m=8&n=8&k=8&sms=9223372036854775808"),
    Bad(422, "GET", "/best-config?m=8&n=8&k=8&sms=133"),
    # Unicode: other digits, other blanks, halves of characters, bytes that are none.
    *[Bad(422, "GET", f"/best-config?m={m}&n=8&k=8") for m in ("%D9%A1", "%EF%BC%91", "%C2%B2")],
    *[Bad(422, "GET", f"/best-config?m={m}&n=8&k=8") for m in ("1%E2%80%8B", "%EF%BB%BF1", "%ff")],
    *[Bad(422, "GET", f"/best-config?m={m}&n=8&k=8") for m in ("%ED%A0%80", "%00", "1%00", "%0A1")],
    Bad(404, "GET", "/best-config?m=8&n=8&k=8&device=%E2%98%83"),
    Bad(404, "GET", "/best-config?m=8&n=8&k=8&device=sm90-0sm-80gb"),
    Bad(404, "GET", "/best-config?m=8&n=8&k=8&device=sm90-9999sm-80gb"),
    Bad(404, "GET", "/best-config?m=8&n=8&k=8&device=sm90-00132sm-141gb"),
    # Repeats, and what nobody reads.
    Bad(422, "GET", "/best-config?m=8&m=8&n=8&k=8"),
    Bad(422, "GET", "/best-config?m=8&n=8&k=8&device=a&device=b"),
    Bad(422, "GET", "/best-config?m=8&n=8&k=8&match=any&match=exact"),
    Bad(422, "GET", "/best-config?m=8&n=8&k=8&matc=any"),
    Bad(422, "GET", "/best-config?m[]=8&n[]=8&k[]=8"),
    Bad(422, "GET", "/best-config?M=8&N=8&K=8"),
    Bad(422, "GET", "/best-config?m=8;n=8;k=8"),
    # Choices.
    *[Bad(422, "GET", f"/best-config?m=8&n=8&k=8&{c}") for c in ("d=up", "dtype=fp8", "layout=nn")],
    *[Bad(422, "GET", f"/best-config?m=8&n=8&k=8&{c}") for c in ("numerics=exact", "match=near")],
    *[Bad(422, "GET", f"/best-config?m=8&n=8&k=8&{c}") for c in ("protocol=hot", "protocol=")],
    # Long strings.
    Bad(422, "GET", "/best-config?" + "x" * 20_000),
    Bad(404, "GET", "/best-config?m=8&n=8&k=8&device=" + "x" * 20_000),
    # Injections.
    Bad(422, "GET", "/best-config?m=1%27%20OR%20%271%27=%271&n=8&k=8"),
    Bad(404, "GET", "/best-config?m=8&n=8&k=8&device=%27;DROP%20TABLE%20devices;--"),
    Bad(404, "GET", "/best-config?m=8&n=8&k=8&device=../../etc/passwd"),
]
LISTS = [
    *[Bad(422, "GET", f"/shapes?{q}") for q in ("limit=0", "limit=1001", "offset=-1", "page=2")],
    *[Bad(422, "GET", f"/shapes?{q}") for q in ("offset=9223372036854775808", "limit=1&limit=2")],
    Bad(404, "GET", "/shapes?device=%00"),
    Bad(422, "GET", "/trials"),
    Bad(422, "GET", "/trials?m=8&n=8&k=0"),
    Bad(422, "GET", "/trials?m=8&n=8&k=8&limit=0"),
    Bad(422, "GET", "/trials?m=8&n=8&k=8&sms=-1"),
    Bad(404, "GET", "/trials?m=8&n=8&k=8&device=%E2%98%83"),
    *[
        Bad(422, "GET", f"/misses?{q}")
        for q in ("limit=x", "format=csv", "d=diagonal", "offset=1e9")
    ],
    Bad(404, "GET", "/misses?device=NVIDIA%20H200"),
    *[
        Bad(422, "GET", f"/snapshot?id={i}")
        for i in ("", "abc", ID[:-1], ID + "0", ID.upper(), "%ff")
    ],
    Bad(422, "GET", f"/snapshot?id={ID}&id={ID}"),
    Bad(404, "GET", f"/snapshot?id={ID}"),
    Bad(404, "GET", "/snapshot?device=nobody"),
    Bad(404, "GET", "/snapshot", headers={"If-None-Match": '"' + "x" * 5000}),
]
BODIES = [
    # What is no JSON object.
    *[
        posted("/best-configs", raw)
        for raw in (b"", b"{", b"[]", b"null", b"8", b'"m"', b"\xff\xfe")
    ],
    posted("/best-configs", b"[" * 50_000, 400),
    posted("/best-configs", b'{"shapes": NaN}'),
    posted("/best-configs", b'{"shapes": "\\ud800"}'),
    posted("/best-configs", batch(), headers={"Content-Type": "text/plain"}),
    # Too much, or too little.
    posted("/best-configs", {}),
    posted("/best-configs", {"shapes": []}),
    posted("/best-configs", {"shapes": [{"m": 8, "n": 8, "k": 8}] * 1001}),
    posted("/best-configs", batch(pad="x" * 2**21), 413),
    # Wrong inside.
    *[posted("/best-configs", shaped(m=m)) for m in (0, -1, 2**31, 2**63, 10**400, 1.5, True, "8")],
    *[posted("/best-configs", shaped(m=m)) for m in (None, [8], {"m": 8}, "\u0661")],
    posted("/best-configs", shaped(b=1)),
    posted("/best-configs", batch(shapes={"m": 8})),
    posted("/best-configs", batch(d="up")),
    posted("/best-configs", batch(sms=133)),
    posted("/best-configs", batch(device="\ud800"), 404),
    posted("/best-configs", batch(device="sm90-0sm-0gb"), 404),
    posted("/best-configs", batch(device=8)),
    # Runs: the same, and who may ask.
    posted("/runs", {"shapes": [{"m": 2**63, "n": 8, "k": 8}]}),
    posted("/runs", b'{"shapes": [{"m": 1, "m": 2}]}'),
    posted("/runs", batch(), 401, {"Authorization": "Bearer wrong"}),
    posted("/runs", batch(), 401, {"Authorization": "Basic YTpi"}),
    Bad(404, "GET", "/runs/" + "x" * 5000, headers=AUTHORIZED),
    Bad(404, "GET", "/runs/%00", headers=AUTHORIZED),
    Bad(401, "GET", "/runs/" + ID[:32]),
    Bad(405, "PUT", "/best-configs"),
    Bad(405, "TRACE", "/best-config"),
]
BAD_REQUESTS = [*LOOKUPS, *LISTS, *BODIES]
