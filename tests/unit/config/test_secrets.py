"""Secrets are never shown by repr, str, JSON or format, and `mask` replaces them in any text."""

from __future__ import annotations

import json

import pytest

from tailrace.config.secrets import (
    MASK,
    Secret,
    connection_secret,
    fit_connection,
    hide_passwords,
    mask,
    remember,
    remembered_briefly,
    setting_secret,
)

PASSWORD = "k0rrekt-h0rse"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (f"postgresql://u:{PASSWORD}@h:5432/d", "postgresql://u:***@h:5432/d"),
        (f"postgresql://u:{PASSWORD}@1@h/d", "postgresql://u:***@h/d"),
        (f"postgresql://u:{PASSWORD}/1@h/d", "postgresql://u:***@h/d"),
        (
            f"postgresql://h/d?user=u&password={PASSWORD}&sslmode=require",
            "postgresql://h/d?user=u&password=***&sslmode=require",
        ),
        (f"host=h password={PASSWORD} user=u", "host=h password=*** user=u"),
        (f"host=h password = '{PASSWORD} \\' x' user=u", "host=h password = *** user=u"),
        (f"sslpassword={PASSWORD}", "sslpassword=***"),
        (f"PASSWORD={PASSWORD}", "PASSWORD=***"),
        ("postgresql://u:${env:PW}@h/d", "postgresql://u:${env:PW}@h/d"),
        ("postgresql://${env:U}:${file:/run/pw}@h/d", "postgresql://${env:U}:${file:/run/pw}@h/d"),
        (f"postgresql://u:{PASSWORD}${{env:PW}}@h/d", "postgresql://u:***@h/d"),
        ("host=h password=${file:/run/a b}", "host=h password=${file:/run/a b}"),
        ("postgresql://h:5432/d", "postgresql://h:5432/d"),
    ],
)
def test_hides_passwords_of_connection_strings(given: str, shown: str) -> None:
    assert hide_passwords(given) == shown


def test_a_secret_shows_its_text_everywhere() -> None:
    secret = connection_secret(Secret("postgresql://u:${env:PW}@h/d", f"postgresql://u:{PASSWORD}@h/d"))
    for text in (repr(secret), str(secret), f"{secret}", f"{secret!r}", "%s" % secret, repr([secret])):  # noqa: UP031
        assert PASSWORD not in text
        assert "${env:PW}" in text
    assert secret.reveal() == f"postgresql://u:{PASSWORD}@h/d"
    with pytest.raises(TypeError):
        vars(secret)


def test_secrets_compare_by_value() -> None:
    assert Secret("a", "b") == Secret("a", "b")
    assert Secret("a", "b") != Secret("a", "c")
    assert len({Secret("a", "b"), Secret("a", "b")}) == 1


@pytest.mark.parametrize(
    ("value", "password"),
    [
        ("postgresql://u:url-s3cret@h/d", "url-s3cret"),
        ("postgresql://u:enc%40ded-1@h/d", "enc@ded-1"),
        ("postgresql://h/d?password=query-s3cret", "query-s3cret"),
        ("host=h password='quo\\'ted s3cret'", "quo'ted s3cret"),
    ],
)
def test_mask_knows_the_password_of_a_resolved_connection(value: str, password: str) -> None:
    connection_secret(Secret("${env:DATABASE_URL}", value))
    assert mask(f"login with {password} failed") == f"login with {MASK} failed"
    assert password not in mask(f"cannot parse {value}")


def test_names_and_addresses_of_a_connection_are_not_masked() -> None:
    connection_secret(
        Secret("host=${env:H} user=${env:U} password=${env:P}", "host=db.example user=svc password=only-me")
    )
    assert mask("svc at db.example") == "svc at db.example"
    assert mask("only-me") == MASK


def test_text_that_is_not_a_connection_string_is_masked_completely() -> None:
    connection_secret(Secret("${env:ODD}", "not-a-connection-9"))
    assert "not-a-connection-9" not in mask("cannot use not-a-connection-9")


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "sasl.jaas.config",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret",
    ],
)
def test_settings_with_secret_names_are_hidden_even_when_written_out(name: str) -> None:
    value = f"plain-{name}-value"
    secret = setting_secret(name, value)
    assert isinstance(secret, Secret)
    assert (str(secret), secret.reveal()) == (MASK, value)
    assert mask(f"failed: {value}") == f"failed: {MASK}"


def test_settings_through_references() -> None:
    hidden = setting_secret("sasl.password", Secret("${env:A}", "env-password-1"))
    mixed = setting_secret("sasl.password", Secret("written-${env:A}", "written-env-password-2"))
    unknown = setting_secret("plugin.thing", Secret("${env:B}", "plugin-value-3"))
    named = setting_secret("sasl.username", Secret("${env:C}", "service-user-4"))
    assert [str(s) for s in (hidden, mixed, unknown, named)] == ["${env:A}", MASK, "${env:B}", "${env:C}"]
    masked = mask("env-password-1 written-env-password-2 plugin-value-3 service-user-4")
    assert masked == f"{MASK} {MASK} {MASK} service-user-4"
    assert setting_secret("linger.ms", "5") == "5"


def test_mask_knows_encoded_forms_and_the_longest_first() -> None:
    remember('tricky"päss\n', "abcd", "abcdefgh-long")
    assert "tricky" not in mask(json.dumps({"x": 'tricky"päss'}))
    assert "tricky" not in mask(repr('tricky"päss\n'))
    assert mask("abcdefgh-long abcd") == f"{MASK} {MASK}"


def test_mask_knows_the_lines_of_a_key() -> None:
    remember("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\n-----END PRIVATE KEY-----")
    assert mask("at MIIEvQIBADANBgkqhkiG9w0B") == f"at {MASK}"
    assert mask("-----END PRIVATE KEY----- expected") == "-----END PRIVATE KEY----- expected"


def test_mask_does_not_replace_short_values() -> None:
    remember("a", "ab", "", "xyz")
    assert mask("a cab of xyz") == "a cab of xyz"


@pytest.mark.parametrize(
    ("value", "before", "after", "fitted"),
    [
        ("p@ss/1:?", "postgresql://u:", "@h/d", "p%40ss%2F1%3A%3F"),
        ("p%40ss", "postgresql://u:", "@h/d", "p%40ss"),
        ("100%", "postgresql://u:", "@h/d", "100%25"),
        ("p@ss", "postgresql://${file:/run/user}:", "@h/d", "p%40ss"),
        ("h:5432", "postgresql://u@", "/d", "h:5432"),
        ("postgresql://u:p@h/d", "", "", "postgresql://u:p@h/d"),
        ("it's me\\", "host=h password=", " user=u", "'it\\'s me\\\\'"),
        ("plain", "host=h password=", " user=u", "plain"),
        ("it's", "host=h password='", "'", "it's"),
    ],
)
def test_referenced_values_are_escaped_for_their_place(value: str, before: str, after: str, fitted: str) -> None:
    assert fit_connection(value, before, after) == fitted


@pytest.mark.parametrize("name", ["oauth_client_secret", "scram_client_key", "scram_server_key"])
def test_every_secret_of_libpq_is_hidden(name: str) -> None:
    secret = connection_secret(f"host=h {name}=planted-{name}")
    assert str(secret) == f"host=h {name}=***"
    assert f"planted-{name}" not in mask(f"cannot log in with planted-{name}")


def test_the_password_of_a_proxy_is_hidden() -> None:
    secret = setting_secret("proxy", "http://user:proxy-s3cret@proxy:3128")
    assert isinstance(secret, Secret)
    assert (str(secret), secret.reveal()) == ("http://user:***@proxy:3128", "http://user:proxy-s3cret@proxy:3128")
    assert mask("proxy-s3cret") == MASK
    setting_secret("proxy", Secret("${env:PROXY}", "http://user:other-s3cret@proxy:3128"))
    assert mask("refused other-s3cret") == f"refused {MASK}"


def test_mask_knows_the_parts_of_a_password_that_is_not_encoded() -> None:
    connection_secret("postgresql://u:first@second/third@h/d")
    assert mask("host 'second', database third") == f"host '{MASK}', database {MASK}"


def test_secrets_that_are_known_for_a_moment() -> None:
    with remembered_briefly():
        remember("brief-secret-1")
        assert mask("a brief-secret-1 b") == "a *** b"
    assert mask("brief-secret-1") == "brief-secret-1"
