//! Parameters of scenarios for unit tests, from their files.

/// Returns the parameters of a scenario, with the values of `changed` (TOML) instead of its own.
pub fn parameters(scenario: &str, changed: &str) -> toml::Table {
    extended(scenario, changed.parse().expect("a table"))
}

/// Returns the parameters of the quick form of a scenario.
pub fn quick(scenario: &str) -> toml::Table {
    let file: toml::Table = scenario.parse().expect("a table");
    extended(scenario, file["quick"].as_table().expect("a quick form").clone())
}

fn extended(scenario: &str, changed: toml::Table) -> toml::Table {
    let file: toml::Table = scenario.parse().expect("a table");
    let mut all = file["parameters"].as_table().expect("parameters").clone();
    all.extend(changed);
    all
}
