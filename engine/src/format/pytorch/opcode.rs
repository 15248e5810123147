//! Pickle opcodes that Python's pickler writes for dicts, tuples, strings and numbers, protocols 2 to 5.

macro_rules! opcodes {
    ($($variant:ident $byte:literal $name:literal)*) => {
        /// Opcode of a pickle; see Python's `pickletools.py`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Opcode { $($variant,)* }

        impl Opcode {
            /// Returns the opcode for a byte, if it is supported.
            pub fn of(byte: u8) -> Option<Self> {
                match byte {
                    $($byte => Some(Opcode::$variant),)*
                    _ => None,
                }
            }

            /// Returns its name in pickletools.
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$variant => $name,)* }
            }
        }
    };
}

opcodes! {
    Proto 0x80 "PROTO"
    Frame 0x95 "FRAME"
    Stop b'.' "STOP"
    Mark b'(' "MARK"
    None b'N' "NONE"
    True 0x88 "NEWTRUE"
    False 0x89 "NEWFALSE"
    Int1 b'K' "BININT1"
    Int2 b'M' "BININT2"
    Int4 b'J' "BININT"
    Long1 0x8a "LONG1"
    Float b'G' "BINFLOAT"
    Text1 0x8c "SHORT_BINUNICODE"
    Text4 b'X' "BINUNICODE"
    Text8 0x8d "BINUNICODE8"
    Bytes1 b'C' "SHORT_BINBYTES"
    Bytes4 b'B' "BINBYTES"
    Bytes8 0x8e "BINBYTES8"
    ByteArray8 0x96 "BYTEARRAY8"
    EmptyTuple b')' "EMPTY_TUPLE"
    Tuple1 0x85 "TUPLE1"
    Tuple2 0x86 "TUPLE2"
    Tuple3 0x87 "TUPLE3"
    Tuple b't' "TUPLE"
    EmptyList b']' "EMPTY_LIST"
    Append b'a' "APPEND"
    Appends b'e' "APPENDS"
    EmptyDict b'}' "EMPTY_DICT"
    SetItem b's' "SETITEM"
    SetItems b'u' "SETITEMS"
    Put1 b'q' "BINPUT"
    Put4 b'r' "LONG_BINPUT"
    Memoize 0x94 "MEMOIZE"
    Get1 b'h' "BINGET"
    Get4 b'j' "LONG_BINGET"
    Global b'c' "GLOBAL"
    StackGlobal 0x93 "STACK_GLOBAL"
    PersistentId b'Q' "BINPERSID"
    Reduce b'R' "REDUCE"
    Build b'b' "BUILD"
    NewObject 0x81 "NEWOBJ"
}
