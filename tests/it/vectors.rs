//! The spec's stories, through the core with a clock of its own.

#[test]
fn every_vector_passes_or_is_listed_as_not_yet() {
    let verdicts = conformance::run_folder(&conformance::folder()).unwrap();
    let wrong: Vec<_> = verdicts
        .iter()
        .filter(|verdict| !verdict.is_as_expected())
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
