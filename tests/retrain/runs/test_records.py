from retrain.runs.records import cell


def test_what_a_user_wrote_does_not_break_markdown():
    text = "('a|b\\nc',) -> ('<img src=x onerror=alert(1)>\n[x](javascript:y) `z`')"
    assert cell(text) == (
        r"('a\|b\\nc',) -&gt; ('&lt;img src=x onerror=alert(1)&gt; \[x\](javascript:y) \`z\`')"
    )
