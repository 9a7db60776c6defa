//! What a Parquet file may claim: a recording comes from anybody, and its sums are right whoever made it.
//!
//! The decoder believes what a file says of itself: how many rows there are, how long a page is once it is
//! unpacked, how many values follow. Some claims cost memory without end, at others it panics. So what is
//! claimed is held against the bytes that are there before it is decoded, and of encodings only those
//! are taken that the writer of recordings uses. What is left over is caught ([`contained`]).

use bytes::{Buf, Bytes};
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};
use std::cell::Cell;

/// Rows that a table may have however small its files are, and more for each byte of them. Of what is
/// recorded a row takes more than a byte: times and addresses are never the same.
const FREE_ROWS: u64 = 1 << 20;
/// The same of the text in them, in bytes. A name that many rows have is stored once.
const FREE_TEXT_BYTES: u64 = 256 << 20;
const TEXT_PER_BYTE: u64 = 64;
/// Most that Snappy unpacks out of a byte: a copy of 64 bytes takes three.
const UNPACKED_PER_BYTE: u64 = 22;

/// What the files of a table may still come to in memory.
#[derive(Debug)]
pub(crate) struct Budget {
    rows: u64,
    text_bytes: Cell<u64>,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self {
            rows: FREE_ROWS,
            text_bytes: Cell::new(FREE_TEXT_BYTES),
        }
    }

    /// Another file of so many bytes is read.
    pub(crate) fn add_file(&mut self, bytes: u64) {
        self.rows = self.rows.saturating_add(bytes);
        let text = bytes.saturating_mul(TEXT_PER_BYTE);
        self.text_bytes
            .set(self.text_bytes.get().saturating_add(text));
    }

    /// Takes rows; a sentence where there are too many.
    pub(crate) fn take_rows(&mut self, rows: u64) -> std::result::Result<(), String> {
        self.rows = self.rows.checked_sub(rows).ok_or_else(|| {
            format!("says that it has {rows} rows, which are more than a file of its size can hold")
        })?;
        Ok(())
    }

    /// The same of text.
    pub(crate) fn take_text(&self, bytes: u64) -> std::result::Result<(), String> {
        let left = self.text_bytes.get().checked_sub(bytes);
        self.text_bytes.set(left.ok_or_else(|| {
            format!("has {bytes} bytes of text, which are more than a file of its size can hold")
        })?);
        Ok(())
    }
}

fn refuse<T>(what: &str) -> Result<T> {
    Err(ParquetError::General(what.to_owned()))
}

/// A file in memory whose pages say how long they will be before they are unpacked.
pub(crate) struct File(pub(crate) Bytes);

impl Length for File {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

impl ChunkReader for File {
    type T = bytes::buf::Reader<Bytes>;

    /// Pages are read from here on, and the end of the file.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let Some(from) = usize::try_from(start).ok().filter(|&at| at <= self.0.len()) else {
            return refuse("it points behind its end");
        };
        let bytes = self.0.slice(from..);
        if let Some((unpacked, packed)) = page_sizes(&bytes)
            && unpacked > packed.saturating_mul(UNPACKED_PER_BYTE).saturating_add(64)
        {
            return refuse("a page says that it becomes larger than it can");
        }
        Ok(bytes.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let from = usize::try_from(start).ok();
        let range = from.and_then(|from| Some(from..from.checked_add(length)?));
        match range.filter(|range| range.end <= self.0.len()) {
            Some(range) => Ok(self.0.slice(range)),
            None => refuse("it points behind its end"),
        }
    }
}

/// Bytes of a page as it is unpacked and as it is stored: fields 2 and 3 of a `PageHeader`
/// (parquet.thrift), in Thrift's compact form. `None` where this is no header of a page: it is read, and
/// refused, by the decoder.
///
/// ```text
/// 15 00 15 8a 9e 03 15 90 12 ...    field 1: 0, field 2: 26,501, field 3: 1,160
/// ```
fn page_sizes(bytes: &[u8]) -> Option<(u64, u64)> {
    /// The next field, and of type i32.
    const NEXT_I32: u8 = 0x15;
    let mut bytes = bytes.iter();
    let mut field = || {
        (*bytes.next()? == NEXT_I32).then_some(())?;
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *bytes.next()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                // An even number is positive.
                return Some(value >> 1);
            }
        }
        None
    };
    field()?;
    Some((field()?, field()?))
}

/// Pages of a column, of which no more is claimed than is there.
pub(crate) struct Checked {
    pages: Box<dyn PageReader>,
    rows: u64,
    has_dictionary: bool,
}

impl Checked {
    /// `rows`: those of the row group.
    pub(crate) fn new(pages: Box<dyn PageReader>, rows: usize) -> Self {
        Self {
            pages,
            rows: rows as u64,
            has_dictionary: false,
        }
    }

    fn check(&mut self, page: &Page) -> Result<()> {
        let bytes = page.buffer().len() as u64;
        let values = u64::from(page.num_values());
        match page {
            Page::DictionaryPage { .. } => {
                if values > bytes {
                    return refuse("a dictionary has more words than bytes");
                }
                self.has_dictionary = true;
                return Ok(());
            }
            Page::DataPageV2 {
                def_levels_byte_len,
                rep_levels_byte_len,
                num_nulls,
                ..
            } => {
                let levels = u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len);
                if levels > bytes || u64::from(*num_nulls) > values {
                    return refuse("a page has more levels than bytes");
                }
            }
            Page::DataPage { .. } => {}
        }
        if values > self.rows {
            return refuse("a page has more values than there are rows");
        }
        match page.encoding() {
            Encoding::PLAIN | Encoding::RLE | Encoding::DELTA_BINARY_PACKED => Ok(()),
            #[allow(deprecated)]
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY if self.has_dictionary => Ok(()),
            _ => refuse("a page is encoded in a way that recordings are not"),
        }
    }
}

impl Iterator for Checked {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Checked {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }
}

/// Decodes; where the decoder panics at what contradicts itself, that is a fault of the file.
pub(crate) fn contained<T>(
    decode: impl FnOnce() -> std::result::Result<T, String>,
) -> std::result::Result<T, String> {
    // What a panic leaves half written is dropped by the caller.
    hither_files::contained(decode)
        .unwrap_or_else(|| Err("cannot be decoded: it contradicts itself".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_say_how_large_they_become() {
        let header = [0x15, 0x00, 0x15, 0x8a, 0x9e, 0x03, 0x15, 0x90, 0x12, 0x2c];
        assert_eq!(page_sizes(&header), Some((26_501, 1_160)));
        assert!(File(Bytes::copy_from_slice(&header)).get_read(0).is_err());
        assert_eq!(page_sizes(&header[..8]), None);
        assert_eq!(page_sizes(b"PAR1"), None);
    }

    #[test]
    fn a_panic_is_a_sentence() {
        let text = contained(|| -> std::result::Result<(), String> { panic!("not to be seen") });
        assert_eq!(
            text.unwrap_err(),
            "cannot be decoded: it contradicts itself"
        );
    }

    #[test]
    fn larger_files_may_have_more() {
        let mut budget = Budget::new();
        assert!(budget.take_rows(FREE_ROWS + 1).is_err());
        budget.add_file(10);
        assert!(budget.take_rows(FREE_ROWS + 10).is_ok());
        assert!(budget.take_rows(1).is_err());
        assert!(budget.take_text(FREE_TEXT_BYTES + 640).is_ok());
        assert!(budget.take_text(1).is_err());
    }
}
