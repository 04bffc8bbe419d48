"""Secrets never reach a log: by their look, by where they stand, and by the name before them."""

import pytest

from dp_prior.files.redact import is_secret_name, redact
from tests.cases import every

CANARY = "Zq9canary8Xw7Vt"


@every(
    text=[
        f"hf_{CANARY}",
        f"invalid key wandb_v1_{CANARY}",
        f"https://user:{CANARY}@example.org/x",
        f"Post https://{CANARY}@host/graphql: refused",
        f"Authorization: Bearer {CANARY}",
        f"'Authorization': 'Basic {CANARY}'",
        f"GET /resolve?token={CANARY}&x=1",
        f"{{'api_key': '{CANARY}'}}",
        f'{{"api-key":"{CANARY}"}}',
        f"WANDB_API_KEY={CANARY}",
        f"password: {CANARY}, user: me",
        f"AWS_SECRET_ACCESS_KEY={CANARY}",
        f"eyJhbGciOi{CANARY}.eyJ{CANARY}.{CANARY}",
    ]
)
def test_a_secret_is_hidden(text):
    assert CANARY not in redact(text) and "[hidden]" in redact(text)
    assert redact(redact(text)) == redact(text)


def test_an_old_key_of_40_hex_digits_is_hidden_and_a_hash_is_not():
    assert redact("key 0123456789abcdef0123456789abcdef01234567!") == "key [hidden]!"
    assert redact("a" * 64) == "a" * 64


@pytest.mark.parametrize(
    "text",
    [
        "OSError: [Errno 28] No space left on device: '/runs/a/metrics.csv'",
        "ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/x",
        "the tokenizer has 512 tokens of width 64",
        "loss of step 3 is nan; look at keyboard.json",
    ],
)
def test_other_text_stays_as_it_is(text):
    assert redact(text) == text


def test_names_of_secrets_are_known():
    assert all(is_secret_name(name) for name in ("api_key", "HF_TOKEN", "apikey", "secret", "Password"))
    assert not any(is_secret_name(name) for name in ("space_id", "tokenizer", "keys", "tracking_uri", "n_tokens_max"))
