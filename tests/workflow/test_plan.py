"""The plan at the start of a dry run, and as a command."""


def test_dry_run_begins_with_the_plan(shared_project):
    text = shared_project.snakemake("--dry-run").text

    assert text.count("plan for localhost") == 1
    assert text.index("plan for localhost") < text.index("smol-demo-low") < text.index("Job stats")


def test_other_runs_do_not_plan(shared_project):
    assert "plan for" not in shared_project.snakemake("--summary").text


def test_day_of_wall_time_at_a_site_of_twelve_hours_is_refused(project):
    project.replace("profiles/jupiter/config.yaml", "runtime: 719", "runtime: 1439")
    ran = project.snakemake("--dry-run", site="jupiter")

    assert ran.code != 0
    assert "set-resources, train, runtime: found 1439 minutes, expected at most 720" in ran.text


def test_wall_time_of_a_qos_is_its_own(project):
    project.replace(
        "profiles/leonardo/config.yaml", "qos: normal, gres", "qos: boost_qos_dbg, gres"
    )
    ran = project.snakemake("--dry-run", site="leonardo")

    assert ran.code != 0
    assert "expected at most 30 for qos boost_qos_dbg" in ran.text
    assert "num_nodes: found 8, expected at most 2 for qos boost_qos_dbg" in ran.text


def test_command_plans_all_rows_of_a_site(shared_project):
    ran = shared_project.run_cli("plan", site="vista")

    assert ran.code == 0, ran.text
    assert "qwen3-8b-openthoughts-bs96" in ran.text


def test_command_plans_the_rows_that_a_pattern_names_in_full(shared_project):
    ran = shared_project.run_cli("plan", "*-low")

    assert ran.code == 0, ran.text
    assert "demo: interleave_under 0.6, 0.4" in ran.text
    assert "smol-demo-high" not in ran.text


def test_command_refuses_a_name_that_is_none(shared_project):
    ran = shared_project.run_cli("plan", "smol-demo-lo")

    assert ran.code == 1
    assert ran.text == (
        "no experiment 'smol-demo-lo' at localhost; did you mean 'smol-demo-low'?\n"
    )


def test_command_ends_with_one_where_a_fact_refuses(project):
    project.replace("profiles/jupiter/config.yaml", "runtime: 719", "runtime: 1439")
    ran = project.run_cli("plan", site="jupiter")

    assert ran.code == 1
    assert "X profiles/jupiter/config.yaml, set-resources, train, runtime" in ran.text
