"""Devices that something is stored for."""

from http import HTTPStatus

from fastapi import APIRouter
from pydantic import BaseModel

from tuner.api.problem_details import documented
from tuner.api.reader import RepositoryDep
from tuner.api.schemas import StoredDevice

router = APIRouter(tags=["devices"])


class Devices(BaseModel):
    """Every stored device, by key."""

    devices: list[StoredDevice]


@router.get("/devices", responses=documented(HTTPStatus.SERVICE_UNAVAILABLE))
def devices(repository: RepositoryDep) -> Devices:
    """What `device` can be in the other queries."""
    return Devices(
        devices=[
            StoredDevice(key=d.key, name=d.name, sms=d.sms, shapes=d.shapes)
            for d in repository.devices()
        ]
    )
