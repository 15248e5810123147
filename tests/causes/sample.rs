//! One change of each kind in each arithmetic, in full dumps; and dumps without a change.

use xcheck::compare::Verdict;

use crate::planted::{ARITHMETICS, Bed, MODELS, Thinned, Told, kinds, told};

/// Kinds that some model has in each arithmetic, planted in the first model that has them: with another value each time.
fn assert_named(arithmetic: &'static str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let turn = ARITHMETICS.iter().position(|known| *known == arithmetic).expect("it is listed");
    let beds: Vec<Bed> = MODELS.iter().map(|model| Bed::new(model, arithmetic)).collect();
    let plants: Vec<_> =
        beds.iter().flat_map(|bed| bed.plants().into_iter().map(move |plant| (bed, plant))).collect();
    let mut right = 0;
    for kind in kinds() {
        let of_kind: Vec<_> = plants.iter().filter(|(_, plant)| plant.change.entry.kind == kind).collect();
        let Some((bed, plant)) = of_kind.get(turn * of_kind.len() / ARITHMETICS.len()) else { continue };
        let path = folder.path().join(kind.name());
        let (dump, made) = bed.dump(std::slice::from_ref(&plant.supposed), Thinned::Full, &path);
        let outcome = bed.check(&dump);
        let told = told(&outcome, &plant.change, made);
        let what = outcome.findings.first().map(|finding| &finding.what);
        assert!(
            matches!(told, Told::Right | Told::Among | Told::Hidden),
            "{told:?}: {} in {}, {arithmetic}: {what:?}",
            plant.change,
            bed.name
        );
        right += usize::from(told == Told::Right);
    }
    assert!(right > 30, "only {right} kinds have their name in {arithmetic}");
}

#[test]
fn every_kind_has_its_name_in_f32() {
    assert_named("f32");
}

#[test]
fn every_kind_has_its_name_in_bf16() {
    assert_named("bf16");
}

#[test]
fn every_kind_has_its_name_in_what_llama_cpp_computes() {
    assert_named("llama.cpp");
}

#[test]
fn every_kind_has_its_name_where_sums_have_another_order() {
    assert_named("other-order");
}

#[test]
fn what_is_right_has_no_cause() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (model, arithmetic) in
        MODELS.iter().flat_map(|model| ARITHMETICS.map(|arithmetic| (model, arithmetic)))
    {
        let bed = Bed::new(model, arithmetic);
        for thinned in [Thinned::Full, Thinned::NoScores, Thinned::Blocks, Thinned::Logits] {
            let path = folder.path().join(format!("{model}-{arithmetic}-{thinned:?}"));
            let (dump, made) = bed.dump(&[], thinned, &path);
            let outcome = bed.check(&dump);
            let name = format!("{model}, {arithmetic}, {thinned:?}: {:?}", outcome.reason);
            assert_eq!((made, outcome.findings.len()), (0, 0), "{name}");
            assert_ne!(outcome.verdict, Verdict::Fail, "{name}");
        }
    }
}
