"""HTTPS with a certificate of the operator's, and with certificates of clients."""

import ssl

import httpx
import pytest
from tests.support.certificates import self_signed
from tests.support.fake_server import FakeServer

from headrace.config.secret import Secret
from headrace.config.security import SecurityConfig
from headrace.core.errors import ConfigError
from headrace.web.tls import tls_context

TEXT = {"prompt": "hi", "max_tokens": 3}


def test_https_with_a_locked_key_and_client_certificates(tmp_path):
    ours, theirs = self_signed(tmp_path, "server", "pass word"), self_signed(tmp_path, "client")
    security = {
        "ssl_certfile": str(ours.cert),
        "ssl_keyfile": str(ours.key),
        "ssl_keyfile_password": "pass word",
        "ssl_ca_certs": str(theirs.cert),
        "api_keys": "alice:sk-1",
    }
    context = ssl.create_default_context(cafile=str(ours.cert))
    with FakeServer(tmp_path, security=security) as server:
        assert server.url.startswith("https://127.0.0.1:")
        with (
            pytest.raises((httpx.TransportError, ssl.SSLError)),
            httpx.Client(verify=context) as client,
        ):
            client.get(f"{server.url}/livez")
        context.load_cert_chain(theirs.cert, theirs.key)
        with httpx.Client(verify=context, headers={"x-api-key": "sk-1"}) as client:
            answer = client.post(f"{server.url}/v1/completions", json=TEXT)
            assert answer.status_code == 200
            with client.stream(
                "POST", f"{server.url}/v1/completions", json=TEXT | {"stream": True}
            ) as stream:
                assert list(stream.iter_lines())[-2:] == ["data: [DONE]", ""]
            assert httpx.get(f"{server.url}/livez", verify=context).status_code == 200
        plain = server.url.replace("https", "http")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{plain}/livez")


def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path):
    one, other = self_signed(tmp_path, "one"), self_signed(tmp_path, "other", "word")
    (tmp_path / "no.pem").write_text("no certificate")

    def refused(reason, **settings):
        given = {k: Secret(v) if "password" in k else str(v) for k, v in settings.items()}
        with pytest.raises(ConfigError, match=reason):
            tls_context(SecurityConfig(**given))

    refused("no file", ssl_certfile=tmp_path / "none.pem")
    refused("cannot be used", ssl_certfile=tmp_path / "no.pem", ssl_keyfile=one.key)
    refused(
        "key values mismatch",
        ssl_certfile=one.cert,
        ssl_keyfile=other.key,
        ssl_keyfile_password="word",
    )
    refused("cannot be used", ssl_certfile=other.cert, ssl_keyfile=other.key)
    refused(
        "cannot be used", ssl_certfile=other.cert, ssl_keyfile=other.key, ssl_keyfile_password="no"
    )
    refused("authorities", ssl_certfile=one.cert, ssl_keyfile=one.key, ssl_ca_certs=tmp_path / "x")
    refused("needs ssl_certfile", ssl_keyfile=one.key)
    assert tls_context(SecurityConfig()) is None


def test_a_certificate_that_is_no_good_ends_the_start_before_the_engine(tmp_path):
    with FakeServer(tmp_path, wait=False, security={"ssl_certfile": "/none.pem"}) as server:
        assert server.wait() == 2
        assert server.lines == ["headrace: There is no file /none.pem."]
