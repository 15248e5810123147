//! Every change of the catalogue, planted in every model that ships in which it makes sense, and what was told of it.
//!
//! `cargo run --release --example confusion [MODEL|ARITHMETIC|KIND|full|no-scores|blocks|logits …]`

use std::collections::BTreeMap;

use xcheck::selftest::{
    ARITHMETICS, DumpForm, FaultDetection, MODELS, RecordedTaps, TestModel, kinds, plants_of, told,
};
use xcheck::shipped_models;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |of: &[&str], name: &str| {
        !wanted.iter().any(|word| of.contains(&word.as_str())) || wanted.iter().any(|word| word == name)
    };
    let kinds: Vec<String> = kinds().iter().map(ToString::to_string).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let thinned = [
        ("full", RecordedTaps::Full),
        ("no-scores", RecordedTaps::NoScores),
        ("blocks", RecordedTaps::Blocks),
        ("logits", RecordedTaps::Logits),
    ];
    let names = thinned.map(|(name, _)| name);
    let mut matrix: BTreeMap<(&str, String), BTreeMap<FaultDetection, usize>> = BTreeMap::new();
    for model in MODELS.into_iter().filter(|model| is_wanted(&MODELS, model)) {
        for arithmetic in ARITHMETICS.into_iter().filter(|name| is_wanted(&ARITHMETICS, name)) {
            let mut variants =
                shipped_models::MODELS.iter().flat_map(|shipped| shipped.variants().expect("it ships"));
            let (_, files) = variants.find(|(known, _)| known == model).expect("it ships");
            let bed = TestModel::new(model, files.load().expect("it loads").model.into(), arithmetic);
            for plant in plants_of(&bed).expect("it runs") {
                let change = &plant.change;
                let kind = change.entry.kind;
                if !is_wanted(&kinds, kind.name()) {
                    continue;
                }
                for (name, thinned) in thinned.into_iter().filter(|(name, _)| is_wanted(&names, name)) {
                    let form = DumpForm { thinned, ..DumpForm::FULL };
                    let (dump, made) =
                        bed.dump(std::slice::from_ref(&plant.supposed), form).expect("it runs");
                    let outcome = bed.check(&dump).expect("it can be judged");
                    let told = told(&outcome, change, made.stages);
                    *matrix.entry((name, kind.name().to_owned())).or_default().entry(told).or_default() += 1;
                    if !matches!(told, FaultDetection::Right | FaultDetection::Hidden) {
                        let first = outcome.findings.first();
                        let what = first.map_or("", |finding| finding.what.as_str());
                        println!("{told:?}: {change} in {model}, {arithmetic}, {name}: {what}");
                        println!("    {}", outcome.reason.as_deref().unwrap_or(""));
                    }
                }
            }
        }
    }
    for ((name, kind), counts) in &matrix {
        let counts: Vec<String> = counts.iter().map(|(told, count)| format!("{told:?} {count}")).collect();
        println!("{name:10} {kind:22} {}", counts.join("  "));
    }
}
