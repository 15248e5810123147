//! Dumps to be shaped at will: values, element types, layout, manifest, how the passes are cut.

use std::collections::HashMap;
use std::path::Path;

use half::{bf16, f16};
use serde_json::{Value, json};
use xcheck::checkpoint::{Point, Site, TapAxis, ValueKind};
use xcheck::dump::{ArrayValues, Dump};
use xcheck::format::FileBytes;
use xcheck::weight::DType;

/// An array, as wide as numbers get, and the type it will be stored in.
#[derive(Clone)]
pub struct Array {
    pub dtype: DType,
    pub values: ArrayValues,
    pub axes: Option<Vec<&'static str>>,
}

/// A dump that is no file yet.
#[derive(Clone)]
pub struct Clay {
    /// All but its rows of arrays.
    pub manifest: Value,
    pub arrays: HashMap<Site, Array>,
    /// The rows of a pass that its arrays hold, if not all.
    pub rows: Option<Vec<usize>>,
}

impl Clay {
    pub fn open(path: &Path) -> Self {
        Self::of(&Dump::open(path).unwrap_or_else(|error| panic!("{error}")))
    }

    pub fn of(dump: &Dump) -> Self {
        let mut manifest = serde_json::to_value(&dump.manifest).expect("it is plain data");
        manifest["tensors"] = json!([]);
        let array = |site: Site| {
            let row = dump.row(site).expect("it holds it");
            let values = dump.read(site).expect("it is sound").expect("it holds it");
            (site, Array { dtype: row.dtype().expect("it is known"), values, axes: None })
        };
        Self { manifest, arrays: dump.sites().map(array).collect(), rows: None }
    }

    /// Changes the values of one place.
    pub fn edit(mut self, site: Site, change: impl FnOnce(&mut Vec<f64>)) -> Self {
        change(&mut self.arrays.get_mut(&site).unwrap_or_else(|| panic!("no {site}")).values.data);
        self
    }

    /// Changes the values of every place that is `chosen`.
    pub fn edit_all(mut self, chosen: impl Fn(Site) -> bool, change: impl Fn(&mut ArrayValues)) -> Self {
        let places = self.arrays.iter_mut().filter(|(site, _)| chosen(**site));
        places.for_each(|(_, array)| change(&mut array.values));
        self
    }

    pub fn keep(mut self, kept: impl Fn(Site) -> bool) -> Self {
        self.arrays.retain(|site, _| kept(*site));
        if !self.arrays.keys().any(|site| site.point == Point::Generated) {
            self.manifest["generated"] = Value::Null;
        }
        self
    }

    pub fn without(self, points: &[Point]) -> Self {
        self.keep(|site| !points.contains(&site.point))
    }

    pub fn with_only(self, points: &[Point]) -> Self {
        let rest: Vec<Point> = Point::ALL.iter().copied().filter(|point| !points.contains(point)).collect();
        self.without(&rest)
    }

    /// Stores every number in another type.
    pub fn stored_in(mut self, dtype: DType) -> Self {
        let real = self.arrays.iter_mut().filter(|(site, _)| site.point.kind() == ValueKind::Real);
        real.for_each(|(_, array)| array.dtype = dtype);
        self
    }

    /// Changes the manifest.
    pub fn say(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.manifest);
        self
    }

    /// The same values, as passes of so many tokens would have shown them. What such passes would have in the middle of
    /// a pass of this dump, and nothing tells, is left out.
    pub fn cut(&self, lengths: &[usize]) -> Self {
        let dump = self.dump();
        let tokens: Vec<u32> = dump.manifest.passes.iter().flat_map(|pass| pass.tokens.clone()).collect();
        assert_eq!(lengths.iter().sum::<usize>(), tokens.len(), "every token once");
        let mut cut = Self { manifest: self.manifest.clone(), arrays: HashMap::new(), rows: None };
        let mut passes = Vec::new();
        for &length in lengths {
            let start = passes.iter().map(|(_, length)| length).sum::<usize>();
            passes.push((start, length));
        }
        let listed = passes
            .iter()
            .map(|&(start, length)| json!({"position": start, "tokens": tokens[start..start + length]}));
        cut.manifest["passes"] = listed.collect();
        let mut once: Vec<(Point, Option<usize>)> = Vec::new();
        for site in self.arrays.keys() {
            match site.pass {
                None => drop(cut.arrays.insert(*site, self.arrays[site].clone())),
                Some(_) if !once.contains(&(site.point, site.layer)) => once.push((site.point, site.layer)),
                Some(_) => {}
            }
        }
        for (point, layer) in once {
            let parts: Option<Vec<Array>> = passes
                .iter()
                .map(|&(start, length)| self.part(&dump, point, layer, start, start + length))
                .collect();
            for (pass, array) in parts.into_iter().flatten().enumerate() {
                cut.arrays.insert(Site { point, layer, pass: Some(pass) }, array);
            }
        }
        cut
    }

    /// What a pass from `start` to `end` would have had.
    fn part(
        &self,
        dump: &Dump,
        point: Point,
        layer: Option<usize>,
        start: usize,
        end: usize,
    ) -> Option<Array> {
        let at = |pass: usize| self.arrays.get(&Site { point, layer, pass: Some(pass) });
        let passes = || dump.manifest.passes.iter().enumerate();
        let dtype = at(0)?.dtype;
        let made = |shape: Vec<usize>, data: Vec<f64>| {
            Some(Array { dtype, values: ArrayValues { shape, data }, axes: None })
        };
        match point.axes() {
            [TapAxis::Token, ..] => {
                let mut data = Vec::new();
                let mut width = Vec::new();
                for position in start..end {
                    let (pass, read) = passes().find(|(_, pass)| pass.end() > position)?;
                    let values = &at(pass)?.values;
                    width = values.shape[1..].to_vec();
                    let row = values.data.len() / values.shape[0];
                    data.extend(&values.data[(position - read.position) * row..][..row]);
                }
                made([&[end - start], &width[..]].concat(), data)
            }
            [TapAxis::Head, TapAxis::Token, TapAxis::Key] => {
                let heads = at(0)?.values.shape[0];
                let mut data = Vec::new();
                for head in 0..heads {
                    for position in start..end {
                        let (pass, read) = passes().find(|(_, pass)| pass.end() > position)?;
                        let values = &at(pass)?.values;
                        let (tokens, keys) = (values.shape[1], values.shape[2]);
                        let row = &values.data[(head * tokens + position - read.position) * keys..][..keys];
                        data.extend((0..end).map(|key| row.get(key).copied().unwrap_or(0.0)));
                    }
                }
                made(vec![heads, end - start, end], data)
            }
            [TapAxis::Key, ..] => {
                let (pass, _) = passes().find(|(_, pass)| pass.end() >= end)?;
                let values = &at(pass)?.values;
                let row = values.data.len() / values.shape[0];
                made([&[end], &values.shape[1..]].concat(), values.data[..end * row].to_vec())
            }
            _ => match passes().find(|(_, pass)| pass.end() == end) {
                Some((pass, _)) => at(pass).cloned(),
                None => {
                    let logits = self.part(dump, Point::Logits, None, end - 1, end)?.values;
                    match point {
                        Point::LastLogits => made(vec![logits.data.len()], logits.data),
                        Point::Argmax => made(vec![], vec![largest(&logits.data) as f64]),
                        _ => None,
                    }
                }
            },
        }
    }

    /// The dump, in memory.
    pub fn dump(&self) -> Dump {
        Dump::from_source(FileBytes { path: "shaped.safetensors".into(), data: self.bytes().into() })
            .expect("it is a sound dump")
    }

    pub fn save(&self, path: &Path) {
        std::fs::write(path, self.bytes()).expect("it is written");
    }

    /// A safetensors file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut sites: Vec<Site> = self.arrays.keys().copied().collect();
        // The continuation that stands in the manifest alone has no array.
        sites.retain(|site| site.point != Point::Generated);
        sites.sort_by_key(|site| site.flow_order());
        let (mut manifest, mut header, mut data) =
            (self.manifest.clone(), serde_json::Map::new(), Vec::new());
        if self.rows.is_some() {
            manifest["version"] = json!(2);
        }
        let rows = manifest["tensors"].as_array_mut().expect("rows");
        for site in sites {
            let Array { dtype, values, axes } = &self.arrays[&site];
            let key = format!("p{}/l{}/{}", site.pass.unwrap_or(0), site.layer.unwrap_or(0), site.point);
            let start = data.len();
            values.data.iter().for_each(|&value| put(&mut data, *dtype, value));
            let name = dtype.name();
            let mut row = json!({"tap": site.point, "dtype": name, "shape": values.shape, "file": key.clone() + ".npy"});
            let numbers = [("layer", site.layer), ("pass", site.pass)];
            for (name, number) in numbers.into_iter().filter_map(|(name, number)| Some((name, number?))) {
                row[name] = json!(number);
            }
            if let Some(axes) = axes {
                row["axes"] = json!(axes);
            }
            if let Some(rows) = &self.rows {
                row["rows"] = json!(rows);
            }
            rows.push(row);
            let entry = json!({"dtype": name.to_uppercase(), "shape": values.shape, "data_offsets": [start, data.len()]});
            header.insert(key, entry);
        }
        header.insert("__metadata__".to_owned(), json!({"xcheck": manifest.to_string()}));
        let mut text = Value::Object(header).to_string();
        text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
        [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &data].concat()
    }
}

fn put(bytes: &mut Vec<u8>, dtype: DType, value: f64) {
    match dtype {
        DType::F64 => bytes.extend(value.to_le_bytes()),
        DType::F32 => bytes.extend((value as f32).to_le_bytes()),
        DType::F16 => bytes.extend(f16::from_f64(value).to_le_bytes()),
        DType::BF16 => bytes.extend(bf16::from_f64(value).to_le_bytes()),
        DType::U32 => bytes.extend((value as u32).to_le_bytes()),
        other => panic!("no test needs {other}"),
    }
}

/// The index of the largest number, the first of equals.
pub fn largest(values: &[f64]) -> usize {
    (0..values.len())
        .reduce(|best, at| if values[at] > values[best] { at } else { best })
        .expect("there are some")
}

/// The indices of the two largest numbers.
pub fn two_largest(values: &[f64]) -> (usize, usize) {
    let first = largest(values);
    let mut others = values.to_vec();
    others[first] = f64::NEG_INFINITY;
    (first, largest(&others))
}
