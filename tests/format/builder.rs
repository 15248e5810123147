//! Writes GGUF files byte by byte, well-formed or damaged in one place.

/// Where the first key starts: after magic, version and the two counts.
pub const FIRST_KEY: usize = 4 + 4 + 8 + 8;

/// ggml's ids of the types that the tests use most.
pub const F32: u32 = 0;
pub const Q8_0: u32 = 8;

/// A GGUF file in the making. The counts are those of what was added, unless set.
#[derive(Clone)]
pub struct GgufBuilder {
    pub magic: [u8; 4],
    pub version: [u8; 4],
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
    pub alignment: usize,
    keys: Vec<Vec<u8>>,
    descriptions: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl GgufBuilder {
    /// Version 3, without keys or tensors.
    pub fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3u32.to_le_bytes(),
            tensor_count: None,
            key_count: None,
            alignment: 32,
            keys: Vec::new(),
            descriptions: Vec::new(),
            data: Vec::new(),
        }
    }

    /// A file with a bit of everything.
    pub fn sample() -> Self {
        Self::new()
            .key("general.architecture", string("llama"))
            .key("llama.block_count", u32(2))
            .key("tokenizer.ggml.tokens", strings(&["<s>", "", "é", "token"]))
            .key("tokenizer.ggml.scores", array(6, 2, &[0.5f32, -1.0].map(f32::to_le_bytes).concat()))
            .key("flags", array(7, 3, &[1, 0, 1]))
            .tensor("norm", &[8], F32, 8 * 4)
            .tensor("linear", &[64, 3], Q8_0, 6 * 34)
    }

    pub fn version(mut self, version: u32) -> Self {
        self.version = version.to_le_bytes();
        self
    }

    /// Adds a key; `value` is its type id and bytes, as the functions below make them.
    pub fn key(self, name: &str, value: Vec<u8>) -> Self {
        self.raw_key([text(name.as_bytes()), value].concat())
    }

    pub fn raw_key(mut self, bytes: Vec<u8>) -> Self {
        self.keys.push(bytes);
        self
    }

    /// Names the alignment in a key and keeps to it.
    pub fn aligned(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.key("general.alignment", u32(alignment))
    }

    /// Adds a tensor (dimensions innermost first) with `bytes` bytes of data after those before it.
    pub fn tensor(mut self, name: &str, dimensions: &[u64], type_id: u32, bytes: usize) -> Self {
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len();
        self.data.extend((0..bytes).map(|index| index as u8));
        self.described(describe(name, dimensions, type_id, offset as u64))
    }

    /// Adds a description that nothing needs to agree with.
    pub fn described(mut self, description: Vec<u8>) -> Self {
        self.descriptions.push(description);
        self
    }

    /// Everything before the data, without the padding.
    pub fn header(&self) -> Vec<u8> {
        let tensor_count = self.tensor_count.unwrap_or(self.descriptions.len() as u64);
        let key_count = self.key_count.unwrap_or(self.keys.len() as u64);
        let mut bytes = [self.magic, self.version].concat();
        bytes.extend(tensor_count.to_le_bytes());
        bytes.extend(key_count.to_le_bytes());
        bytes.extend(self.keys.concat());
        bytes.extend(self.descriptions.concat());
        bytes
    }

    /// Where the data starts.
    pub fn data_start(&self) -> usize {
        self.header().len().next_multiple_of(self.alignment)
    }

    /// The whole file.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(self.data_start(), 0);
        bytes.extend(&self.data);
        bytes
    }
}

/// A length and that many bytes: a string, if they are UTF-8.
pub fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

pub fn describe(name: &str, dimensions: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text(name.as_bytes());
    bytes.extend((dimensions.len() as u32).to_le_bytes());
    dimensions.iter().for_each(|dimension| bytes.extend(dimension.to_le_bytes()));
    bytes.extend(type_id.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

pub fn value(type_id: u32, bytes: &[u8]) -> Vec<u8> {
    [&type_id.to_le_bytes(), bytes].concat()
}

pub fn u32(number: u32) -> Vec<u8> {
    value(4, &number.to_le_bytes())
}

pub fn string(content: &str) -> Vec<u8> {
    value(8, &text(content.as_bytes()))
}

pub fn array(element_type: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    value(9, &[&element_type.to_le_bytes(), count.to_le_bytes().as_slice(), elements].concat())
}

pub fn strings(contents: &[&str]) -> Vec<u8> {
    let elements: Vec<u8> = contents.iter().flat_map(|content| text(content.as_bytes())).collect();
    array(8, contents.len() as u64, &elements)
}
