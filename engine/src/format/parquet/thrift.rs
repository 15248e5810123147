//! Thrift's compact protocol, in which Parquet writes its metadata: structures of numbered fields.

/// Maximum nesting depth.
const DEEPEST: usize = 24;
/// Maximum number of values in one structure, which bounds the memory to 1 GB. A file of 200 000 column chunks has fewer.
const MOST_VALUES: usize = 1 << 24;

/// A structure: its fields by their numbers.
#[derive(Debug, Default)]
pub(super) struct ThriftStruct<'a>(Vec<(i16, ThriftValue<'a>)>);

#[derive(Debug)]
enum ThriftValue<'a> {
    Flag(bool),
    Int(i64),
    Bytes(&'a [u8]),
    List(Vec<ThriftValue<'a>>),
    Struct(ThriftStruct<'a>),
    /// A number or a map that Parquet's metadata does not need.
    Unused,
}

impl<'a> ThriftStruct<'a> {
    /// Reads the structure at the start of `bytes`; returns it with its length. `None` if it is damaged.
    pub(super) fn read(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let mut reader = ThriftReader { bytes, at: 0, left: MOST_VALUES };
        let found = reader.structure(0)?;
        Some((found, reader.at))
    }

    fn field(&self, id: i16) -> Option<&ThriftValue<'a>> {
        self.0.iter().find(|(known, _)| *known == id).map(|(_, value)| value)
    }

    pub(super) fn int(&self, id: i16) -> Option<i64> {
        match self.field(id)? {
            ThriftValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns a number that must not be negative.
    pub(super) fn size(&self, id: i16) -> Option<usize> {
        self.int(id).and_then(|value| value.try_into().ok())
    }

    pub(super) fn flag(&self, id: i16) -> Option<bool> {
        match self.field(id)? {
            ThriftValue::Flag(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn text(&self, id: i16) -> Option<&'a str> {
        match self.field(id)? {
            ThriftValue::Bytes(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub(super) fn structure(&self, id: i16) -> Option<&Self> {
        match self.field(id)? {
            ThriftValue::Struct(fields) => Some(fields),
            _ => None,
        }
    }

    /// Returns the structures of a list; `None` if the field is missing or has other elements.
    pub(super) fn structures<'s>(&'s self, id: i16) -> Option<Vec<&'s Self>> {
        let Some(ThriftValue::List(list)) = self.field(id) else { return None };
        let each = |element: &'s ThriftValue<'a>| match element {
            ThriftValue::Struct(fields) => Some(fields),
            _ => None,
        };
        list.iter().map(each).collect()
    }

    /// Returns the number of the only field, as unions have it.
    pub(super) fn variant(&self) -> Option<i16> {
        self.0.first().map(|(id, _)| *id)
    }
}

struct ThriftReader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Number of values that may follow.
    left: usize,
}

impl<'a> ThriftReader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(bytes)
    }

    fn varint(&mut self) -> Option<u64> {
        super::varint(self.bytes, &mut self.at)
    }

    fn signed(&mut self) -> Option<i64> {
        self.varint().map(super::zigzag)
    }

    fn structure(&mut self, depth: usize) -> Option<ThriftStruct<'a>> {
        let mut fields = Vec::new();
        let mut id = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(ThriftStruct(fields));
            }
            id = match head >> 4 {
                0 => self.signed()?.try_into().ok()?,
                step => id.checked_add(step.into())?,
            };
            let value = match head & 15 {
                flag @ (1 | 2) => ThriftValue::Flag(flag == 1),
                kind => self.value(kind, depth)?,
            };
            fields.push((id, value));
        }
    }

    /// Reads a value of a type; truth values of lists have a byte each.
    fn value(&mut self, kind: u8, depth: usize) -> Option<ThriftValue<'a>> {
        self.left = self.left.checked_sub(1)?;
        if depth == DEEPEST {
            return None;
        }
        Some(match kind {
            1 | 2 => ThriftValue::Flag(self.byte()? == 1),
            3 => ThriftValue::Int((self.byte()? as i8).into()),
            4..=6 => ThriftValue::Int(self.signed()?),
            7 => self.take(8).map(|_| ThriftValue::Unused)?,
            8 => {
                let len = self.varint()?.try_into().ok()?;
                ThriftValue::Bytes(self.take(len)?)
            }
            9 | 10 => self.list(depth)?,
            11 => self.map(depth)?,
            12 => ThriftValue::Struct(self.structure(depth + 1)?),
            13 => self.take(16).map(|_| ThriftValue::Unused)?,
            _ => return None,
        })
    }

    fn list(&mut self, depth: usize) -> Option<ThriftValue<'a>> {
        let head = self.byte()?;
        let len = match head >> 4 {
            15 => self.varint()?.try_into().ok()?,
            few => few.into(),
        };
        // Each element has at least one byte.
        if len > self.bytes.len() - self.at {
            return None;
        }
        (0..len).map(|_| self.value(head & 15, depth + 1)).collect::<Option<_>>().map(ThriftValue::List)
    }

    fn map(&mut self, depth: usize) -> Option<ThriftValue<'a>> {
        let len = self.varint()?;
        let kinds = if len > 0 { self.byte()? } else { 0 };
        for _ in 0..len {
            self.value(kinds >> 4, depth + 1)?;
            self.value(kinds & 15, depth + 1)?;
        }
        Some(ThriftValue::Unused)
    }
}
