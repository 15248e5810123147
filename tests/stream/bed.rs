//! Dumps cut into messages, and what a stream of these comes to.

use std::io::Cursor;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use xcheck::align::Selection;
use xcheck::check::{EngineRounding, Gate, Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::{DumpStream, cross_check};
use xcheck::dump::{Dump, Manifest};
use xcheck::format::Messages;
use xcheck::model::Model;
use xcheck::numerics::Numerics;
use xcheck::verdict::Outcome;

/// What a stream is called: a file of the same name is told of alike.
pub const NAME: &str = "a dump";
/// No message of these tests is larger.
pub const MOST: u64 = 1 << 30;

/// The end that a producer marks.
pub fn end() -> Vec<u8> {
    vec![0; 8]
}

/// What is sent of a dump in one message: what holds of each site that `takes` says.
pub fn message(dump: &Dump, takes: &dyn Fn(Site) -> bool) -> Vec<u8> {
    message_of(dump, &dump.manifest, takes)
}

/// The same, with another manifest.
pub fn message_of(dump: &Dump, manifest: &Manifest, takes: &dyn Fn(Site) -> bool) -> Vec<u8> {
    let mut manifest = manifest.clone();
    manifest.tensors.retain(|row| takes(row.site().expect("a place")));
    let arrays: Vec<(String, Vec<usize>, Dtype, Vec<u8>)> = manifest
        .tensors
        .iter()
        .map(|row| {
            let site = row.site().expect("a place");
            let values = dump.view(site).expect("it is whole").expect("it is held").to_vec();
            let (dtype, bytes): (_, Vec<u8>) = match row.dtype().expect("a type").name() {
                "bf16" => (Dtype::BF16, each(&values, |v| half::bf16::from_f64(v).to_le_bytes().to_vec())),
                "f16" => (Dtype::F16, each(&values, |v| half::f16::from_f64(v).to_le_bytes().to_vec())),
                "f64" => (Dtype::F64, each(&values, |v| v.to_le_bytes().to_vec())),
                "f32" => (Dtype::F32, each(&values, |v| (v as f32).to_le_bytes().to_vec())),
                _ => (Dtype::U32, each(&values, |v| (v as u32).to_le_bytes().to_vec())),
            };
            (row.file.trim_end_matches(".npy").to_owned(), row.shape.clone(), dtype, bytes)
        })
        .collect();
    let views = arrays.iter().map(|(name, shape, dtype, bytes)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).expect("it is of that size"))
    });
    let json = serde_json::to_string(&manifest).expect("plain data");
    let metadata = [("xcheck".to_owned(), json)].into();
    safetensors::serialize(views, Some(metadata)).expect("it is written")
}

fn each(values: &[f64], bytes: impl Fn(f64) -> Vec<u8>) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}

/// What a message of the layers `first` to `last` needs; layer `n` is the head.
pub fn of_layers(first: usize, last: usize, n: usize) -> impl Fn(Site) -> bool {
    move |site| match (site.layer, site.point) {
        (Some(layer), point) => {
            (first..=last).contains(&layer) || layer + 1 == first && point == Point::BlockOut
        }
        (None, Point::Embed) => first == 0,
        (None, _) => last == n,
    }
}

/// Messages of so many layers each.
pub fn messages(dump: &Dump, n: usize, each: usize) -> Vec<Vec<u8>> {
    (0..=n)
        .step_by(each)
        .map(|first| message(dump, &of_layers(first, (first + each - 1).min(n), n)))
        .collect()
}

/// The same message with other values of an f32 array, where it has it.
pub fn changed(mut message: Vec<u8>, key: &str, change: impl Fn(usize, f32) -> f32) -> Vec<u8> {
    let len = u64::from_le_bytes(message[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&message[8..8 + len]).expect("a header");
    let Some(entry) = header.get(key) else { return message };
    let at = |index: usize| 8 + len + entry["data_offsets"][index].as_u64().expect("an offset") as usize;
    for (index, bytes) in message[at(0)..at(1)].chunks_exact_mut(4).enumerate() {
        let value = f32::from_le_bytes((&*bytes).try_into().expect("four bytes"));
        bytes.copy_from_slice(&change(index, value).to_le_bytes());
    }
    message
}

/// How a dump is judged.
#[derive(Clone)]
pub struct Case<'c> {
    pub model: &'c dyn Model,
    pub numerics: &'c dyn Numerics,
    pub mode: Mode,
    pub role: Role,
    pub selection: Selection,
}

impl<'c> Case<'c> {
    pub fn new(model: &'c dyn Model, numerics: &'c dyn Numerics) -> Self {
        let (mode, role) = (Mode::Local, Role::Candidate);
        Self { model, numerics, mode, role, selection: Selection::everything() }
    }

    fn rules<'r>(&'r self, dump: &Dump, tolerances: &'r Tolerances) -> Rules<'r> {
        Rules {
            selection: &self.selection,
            tolerances,
            precision: dump.manifest.producer.precision().unwrap_or("f32"),
            gate: Gate::Rounding,
            mode: self.mode,
            role: self.role,
            rounding: EngineRounding::Stated,
            is_stated: true,
            suppositions: &[],
            causes: true,
            budget: None,
        }
    }

    /// What is found of the file.
    pub fn whole(&self, dump: &Dump) -> Outcome {
        let tolerances = Tolerances::shipped();
        let rules = self.rules(dump, &tolerances);
        cross_check(NAME, self.model, self.numerics, dump, rules, &mut ()).expect("it can be judged")
    }

    /// What is found of its messages, until they end or cannot be judged.
    pub fn streamed(&self, dump: &Dump, bytes: Vec<u8>) -> xcheck::Result<Outcome> {
        let tolerances = Tolerances::shipped();
        let rules = self.rules(dump, &tolerances);
        let mut streamed = DumpStream::new(NAME, self.model, self.numerics, rules)?;
        let mut messages = Messages::new(Box::new(Cursor::new(bytes)), &dump.path, MOST);
        let broken = loop {
            let judged = messages.take().and_then(|next| {
                let Some(source) = next else { return Ok(false) };
                streamed.judge(&Dump::from_source(source)?, &mut ()).map(|_| true)
            });
            match judged {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break Some(error.to_string()),
            }
        };
        streamed.finish(broken).map(|(outcome, _)| outcome)
    }
}

/// Everything that is told of a comparison, but for how it came about.
pub fn told(outcome: &Outcome) -> Vec<String> {
    let mut told: Vec<String> = outcome.rows.iter().map(|row| format!("{row:?}")).collect();
    told.push(format!("{:?} {:?}", outcome.verdict, outcome.reason));
    told.push(format!("{:?}", outcome.first_divergence().map(|row| row.site)));
    told.push(format!("{:?}", outcome.findings));
    told.push(format!("{:?}", outcome.coverage));
    told.push(format!("{:?}", outcome.notes));
    told.push(format!("{:?} {:?}", outcome.basis.wanted, outcome.basis.choices_are_read));
    told
}

/// A report without what differs between a file and a stream of it.
pub fn plain(path: &Path, names: [&str; 2]) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut report: Value = serde_json::from_str(&text.replace(names[0], names[1])).expect("it is JSON");
    report.as_object_mut().expect("an object").remove("command");
    // Of a stream nothing is left to look at, or to run again with a cause supposed.
    for reference in report["references"].as_array_mut().expect("references") {
        for field in ["next", "sentence"] {
            reference.as_object_mut().expect("an object").remove(field);
        }
        for finding in reference["findings"].as_array_mut().expect("findings") {
            for field in ["confirm", "confirmed"] {
                finding.as_object_mut().expect("an object").remove(field);
            }
        }
    }
    report
}
