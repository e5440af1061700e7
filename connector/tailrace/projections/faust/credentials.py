"""Logins of a projection's app with tokens, as pipelines have them under `kafka.auth`."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import faust
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError
from pydantic import ValidationError

from tailrace.auth import tokens
from tailrace.config.auth import KafkaAuth
from tailrace.config.problems import found_problems
from tailrace.config.section import Section
from tailrace.errors import ConfigError, TailraceError, TokenUnavailable


class _Kafka(Section):
    auth: KafkaAuth


class _App(Section):
    """The part of a pipeline's file that an app has, too: errors name its settings."""

    kafka: _Kafka


class SharedToken(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Gives all clients of the process the same token, as long as it is valid."""

    def __init__(self, provider: tokens.TokenProvider) -> None:
        self.provider = provider

    async def token(self) -> str:
        try:
            return (await self.current()).value
        except TailraceError as error:
            # aiokafka then treats the broker as unavailable and tries again.
            raise KafkaConnectionError(f"{error.code}: {error.what}") from None

    async def current(self) -> tokens.AccessToken:
        return await asyncio.to_thread(tokens.current, self.provider)

    def extensions(self) -> dict[str, str]:
        return dict(getattr(self.provider, "extensions", ()))


def token_credentials(*, context: ssl.SSLContext | None, **auth: Any) -> faust.OAuthCredentials:  # noqa: ANN401
    """Returns `broker_credentials` that log in with tokens. The settings are those of `kafka.auth`.

        projection_app(
            "orders",
            "kafka://kafka.example.org:9093",
            broker_credentials=token_credentials(context=ssl.create_default_context(), aws_iam={"region": "eu-west-1"}),
        )

    `context` verifies the brokers; None sends the token without TLS.
    """
    given = {"kafka": {"auth": auth}}
    try:
        provider = _App.model_validate(given).kafka.auth.token_provider()
    except ValidationError as error:
        problem = found_problems(error, given)[0]
        place = ".".join(problem.place[2:]) or "its login"
        raise ConfigError(f"token_credentials: {place} {problem.what}", remedy=problem.remedy) from None
    return faust.OAuthCredentials(oauth_cb=SharedToken(provider), ssl_context=context)


async def missing_token(credentials: object) -> TokenUnavailable | None:
    """Returns why there is no token now; raises TokenRefused if there will be none."""
    shared = getattr(credentials, "oauth_cb", None)
    if isinstance(shared, SharedToken):
        try:
            await shared.current()
        except TokenUnavailable as error:
            return error
    return None
