//! Dumps of several sequences, written out of those of one.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use xcheck::checkpoint::{Point, Site, TapAxis};
use xcheck::dump::{ArrayValues, Dump};
use xcheck::format::FileBytes;

/// A token of a sequence: which, and where in its pass. Padding is none.
pub type Owner = Option<(usize, usize)>;

/// A dump as it is written: manifest and arrays by their files.
#[derive(Clone)]
pub struct Written {
    pub manifest: Value,
    pub arrays: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    /// Those of another type: its name in safetensors, the shape, the bytes.
    pub others: BTreeMap<String, (&'static str, Vec<usize>, Vec<u8>)>,
}

impl Written {
    /// The same dump, in version 2.
    pub fn of(dump: &Dump) -> Self {
        let manifest = serde_json::to_value(&dump.manifest).expect("plain data");
        let mut written = Self { manifest, arrays: BTreeMap::new(), others: BTreeMap::new() };
        written.manifest["version"] = json!(2);
        for row in &dump.manifest.tensors {
            let values = dump.read(row.site().expect("sound")).expect("sound").expect("held");
            written.arrays.insert(row.file.clone(), (values.shape, floats(&values.data)));
        }
        written.edit_rows(|row| {
            row["dtype"] = json!("f32");
            row.as_object_mut().expect("an object").remove("sha256");
        });
        let rows = written.manifest["tensors"].as_array_mut().expect("rows");
        rows.retain(|row| !["argmax", "generated"].contains(&row["tap"].as_str().expect("a tap")));
        written
    }

    pub fn edit_rows(&mut self, edit: impl Fn(&mut Value)) {
        self.manifest["tensors"].as_array_mut().expect("rows").iter_mut().for_each(edit);
    }

    /// As a `.safetensors` file.
    pub fn bytes(&self) -> Vec<u8> {
        let (mut header, mut body) = (serde_json::Map::new(), Vec::new());
        for (file, (shape, values)) in &self.arrays {
            let start = body.len();
            body.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, body.len()]});
            header.insert(file.trim_end_matches(".npy").to_owned(), entry);
        }
        for (file, (dtype, shape, bytes)) in &self.others {
            let start = body.len();
            body.extend(bytes);
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, body.len()]});
            header.insert(file.trim_end_matches(".npy").to_owned(), entry);
        }
        header.insert("__metadata__".to_owned(), json!({"xcheck": self.manifest.to_string()}));
        let mut header = Value::Object(header).to_string();
        header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &body].concat()
    }

    pub fn open_all(&self) -> xcheck::Result<Vec<Dump>> {
        Dump::all_from_source(FileBytes { path: "written.safetensors".into(), data: self.bytes().into() })
    }

    pub fn open(&self) -> Dump {
        self.open_all().expect("it is sound").pop().expect("there is one")
    }
}

fn floats(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

/// How several sequences stand in a pass: rows, entry by entry of a batch; without a batch there is one.
pub struct Stand {
    pub is_batch: bool,
    pub entries: Vec<Vec<Owner>>,
}

/// A dump twice: the second sequence has each value with the other sign. What is nobody's is NaN.
pub fn twice(dump: &Dump, stand: impl Fn(usize) -> Stand) -> Written {
    let mut written = Written {
        manifest: serde_json::to_value(&dump.manifest).expect("plain data"),
        arrays: BTreeMap::new(),
        others: BTreeMap::new(),
    };
    let passes = &dump.manifest.passes;
    let stands: Vec<Stand> = passes.iter().map(|pass| stand(pass.tokens.len())).collect();
    let rows_of = |index: usize| {
        let (pass, owners) = (&passes[index], stands[index].entries.concat());
        let of = |own: &dyn Fn(usize, usize) -> Value, padding: Value| -> Vec<Value> {
            owners.iter().map(|owner| owner.map_or(padding.clone(), |(whose, at)| own(whose, at))).collect()
        };
        json!({
            "tokens": of(&|_, at| json!(pass.tokens[at]), json!(0)),
            "sequence": of(&|whose, _| json!(whose), Value::Null),
            "position": of(&|_, at| json!(pass.position + at), json!(0)),
        })
    };
    let sequence = json!({"tokens": dump.manifest.input.tokens, "generated": dump.manifest.generated});
    written.manifest["version"] = json!(2);
    written.manifest["passes"] = (0..passes.len()).map(rows_of).collect();
    written.manifest["input"] = json!({"sequences": [sequence, sequence]});
    written.manifest["generated"] = Value::Null;
    let mut tensors = Vec::new();
    for row in &dump.manifest.tensors {
        let site = row.site().expect("sound");
        if site.point == Point::Generated {
            continue;
        }
        let values = dump.read(site).expect("sound").expect("held");
        let (shape, data) = spread(site, &values, &stands, dump);
        let place = json!({"tap": row.tap, "pass": row.pass, "layer": row.layer});
        let is_token = site.point == Point::Argmax;
        let mut entry =
            json!({"dtype": if is_token { "i32" } else { "f32" }, "shape": shape, "file": row.file});
        for (key, value) in place.as_object().expect("an object") {
            if !value.is_null() {
                entry[key] = value.clone();
            }
        }
        // Written as floats for simplicity: token ids stand in what was generated.
        if !is_token {
            tensors.push(entry);
            written.arrays.insert(row.file.clone(), (shape, data));
        }
    }
    written.manifest["tensors"] = Value::Array(tensors);
    written
}

/// Whose each key slot of an entry is, with its position.
fn slots(stands: &[Stand], entry: usize, pass: usize, dump: &Dump) -> Vec<Owner> {
    let of_pass = |index: usize| {
        let first = dump.manifest.passes[index].position;
        let owners = stands[index].entries[entry].iter();
        owners.map(move |owner| owner.map(|(whose, at)| (whose, first + at))).collect::<Vec<_>>()
    };
    (0..=pass).flat_map(of_pass).collect()
}

fn spread(site: Site, values: &ArrayValues, stands: &[Stand], dump: &Dump) -> (Vec<usize>, Vec<f32>) {
    let pass = site.pass.expect("of a pass");
    let (stand, axes) = (&stands[pass], site.point.axes());
    let signed = |whose: usize, value: f64| if whose == 1 { -value as f32 } else { value as f32 };
    let at = |axis: TapAxis| axes.iter().position(|&known| known == axis);
    if at(TapAxis::Token).is_none() && at(TapAxis::Key).is_none() {
        // In the order in which the sequences stand in the pass.
        let first = stand.entries.concat().into_iter().flatten().next().map_or(0, |(whose, _)| whose);
        let data = [first, 1 - first]
            .into_iter()
            .flat_map(|whose| values.data.iter().map(move |&value| signed(whose, value)))
            .collect();
        return ([&[2], values.shape.as_slice()].concat(), data);
    }
    let (mut shape, mut data) = (values.shape.clone(), Vec::new());
    for entry in 0..stand.entries.len() {
        let (tokens, keys) = (&stand.entries[entry], slots(stands, entry, pass, dump));
        for (axis, length) in [(TapAxis::Token, tokens.len()), (TapAxis::Key, keys.len())] {
            if let Some(at) = at(axis) {
                shape[at] = length;
            }
        }
        for flat in 0..shape.iter().product::<usize>() {
            let mut index = unravel(flat, &shape);
            let token = at(TapAxis::Token).map(|axis| tokens[index[axis]]);
            let key = at(TapAxis::Key).map(|axis| keys[index[axis]]);
            let owners: Vec<Owner> = [token, key].into_iter().flatten().collect();
            let whose = owners[0].map(|(whose, _)| whose);
            let is_own = owners.iter().all(|owner| owner.map(|(one, _)| one) == whose);
            data.push(match whose.filter(|_| is_own) {
                None => f32::NAN,
                Some(whose) => {
                    for (axis, owner) in [(TapAxis::Token, token), (TapAxis::Key, key)] {
                        if let (Some(axis), Some(Some((_, place)))) = (at(axis), owner) {
                            index[axis] = place;
                        }
                    }
                    signed(whose, values.data[ravel(&index, &values.shape)])
                }
            });
        }
    }
    let batch = stand.is_batch.then_some(stand.entries.len());
    (batch.into_iter().chain(shape).collect(), data)
}

pub fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        index[axis] = flat % shape[axis];
        flat /= shape[axis];
    }
    index
}

pub fn ravel(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |flat, (at, length)| flat * length + at)
}
