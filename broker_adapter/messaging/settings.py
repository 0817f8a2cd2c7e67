"""`[program.settings.rocketmq_v2]`: the service for clients of RocketMQ 5."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
_Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5}$")]


class ClientServiceSettings(BaseModel):
    """Times in ms. Beyond a limit: TOO_MANY_REQUESTS, never a queue."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    enabled: bool = True
    #: host:port by node id, where clients reach the nodes if not at their addresses in `members`. The same on
    #: all nodes: routes must not depend on who is asked.
    advertise: dict[str, _Address] = Field(default_factory=dict)
    #: Streams of telemetry; every client holds one to each node that it knows.
    max_clients: Positive = 10_000
    #: Calls under way, and of these such as wait for messages.
    max_calls: Positive = 4_096
    max_waiting_receives: Positive = 10_000
    max_batch_messages: Positive = 1_024
    #: A receive is held at least and at most so long, whatever the client asks for; never past its deadline.
    min_polling_ms: Annotated[int, Field(ge=0)] = 5_000
    max_polling_ms: Positive = 20_000
    #: What a consumer may ask for, for how long nobody else of its group gets a message.
    min_invisible_ms: Positive = 10_000
    max_invisible_ms: Positive = 12 * 3_600_000
    #: A message that a consumer gives back is not delivered again sooner: some clients ask for no pause.
    min_retry_ms: Annotated[int, Field(ge=0)] = 1_000

    @model_validator(mode="after")
    def _ordered(self) -> ClientServiceSettings:
        for least, most in (("min_polling_ms", "max_polling_ms"), ("min_invisible_ms", "max_invisible_ms")):
            if getattr(self, least) > getattr(self, most):
                raise ValueError(f"{least} is above {most}")
        return self
