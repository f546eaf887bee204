from retrain.runs.records import steps_in_markdown


def test_what_a_user_wrote_does_not_break_the_table_of_steps():
    why = "checks.labels ('a|b\\nc',) -> ('<img src=x onerror=alert(1)>\n[x](javascript:y) `z`')"
    step = {"step": "validate", "cached": False, "why": why, "seconds": 1.0}
    *head, line = steps_in_markdown({"steps": [step]})
    assert len(head) == 2
    assert line == (
        r"| validate | ran | checks.labels ('a\|b\\nc',) -&gt; ('&lt;img src=x "
        r"onerror=alert(1)&gt; \[x\](javascript:y) \`z\`') | 1.0 |"
    )
