//! One table in one Parquet file: rows to columns and back.

use crate::column::Cell;
use crate::pages::{Budget, Checked, File, contained};
use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type as Physical};
use parquet::column::reader::{get_column_reader, get_typed_column_reader};
use parquet::data_type::DataType;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use std::sync::Arc;

/// Rows from which on columns are encoded, and from which on they are compressed: a compressor clears a
/// table of 32 KiB for each column, which is more than a few rows are worth.
const ENCODED_ROWS: usize = 256;
const COMPRESSED_ROWS: usize = 4096;

/// A column's description.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Type of its cells.
    pub cell: &'static str,
    /// May a cell be missing?
    pub is_optional: bool,
    /// What it holds.
    pub meaning: &'static str,
    /// As Parquet has it.
    pub(crate) field: fn(&str) -> parquet::errors::Result<TypePtr>,
}

/// A row of a table.
pub trait Row: Sized {
    /// The table's name, with which its files begin.
    const TABLE: &'static str;
    /// Its columns, in the order in which they are written.
    const COLUMNS: &'static [Column];

    /// Hands over the columns, each whole.
    #[doc(hidden)]
    fn write(rows: &[Self], target: &mut Target<'_>) -> parquet::errors::Result<()>;

    /// Takes the columns and appends the rows.
    #[doc(hidden)]
    fn read(source: &Source<'_>, into: &mut Vec<Self>) -> Result<(), String>;
}

/// Where columns go.
#[doc(hidden)]
pub struct Target<'a> {
    group: SerializedRowGroupWriter<'a, Vec<u8>>,
}

impl Target<'_> {
    /// The next column.
    pub(crate) fn put<C: Cell>(
        &mut self,
        cells: impl ExactSizeIterator<Item = Option<<C::Stored as DataType>::T>> + Clone,
    ) -> parquet::errors::Result<()> {
        let all = cells.len();
        let present = match C::IS_OPTIONAL {
            true => cells.clone().filter(Option::is_some).count(),
            false => all,
        };
        // Nearly all columns have all of their cells, or none: loops without a branch.
        let (levels, values): (Vec<i16>, Vec<_>) = match present {
            0 => (vec![0; all], Vec::new()),
            _ if present == all => (vec![1; all], cells.map(Option::unwrap_or_default).collect()),
            _ => (
                cells.clone().map(|cell| cell.is_some().into()).collect(),
                cells.flatten().collect(),
            ),
        };
        let Some(mut column) = self.group.next_column()? else {
            return Err(parquet::errors::ParquetError::General(
                "more columns than the schema has".to_owned(),
            ));
        };
        let levels = C::IS_OPTIONAL.then_some(&levels[..]);
        column
            .typed::<C::Stored>()
            .write_batch(&values, levels, None)?;
        column.close()
    }
}

/// Where columns come from: a row group of a file.
#[doc(hidden)]
pub struct Source<'a> {
    group: Box<dyn RowGroupReader + 'a>,
    rows: usize,
    budget: &'a Budget,
}

impl Source<'_> {
    /// Rows of the group.
    pub(crate) fn row_count(&self) -> usize {
        self.rows
    }

    /// All cells of a column; one that may be missing may be missing altogether.
    pub(crate) fn take<C: Cell>(&self, name: &str) -> Result<std::vec::IntoIter<C>, String> {
        let schema = self.group.metadata().schema_descr();
        let Some(index) = schema.columns().iter().position(|c| c.name() == name) else {
            let none = || C::load(None).ok_or_else(|| format!("has no column `{name}`"));
            return Ok((0..self.rows)
                .map(|_| none())
                .collect::<Result<Vec<C>, _>>()?
                .into_iter());
        };
        let column = schema.column(index);
        let is_nested = column.max_rep_level() > 0 || column.max_def_level() > 1;
        if column.physical_type() != C::PHYSICAL || is_nested {
            return Err(format!(
                "has `{name}` as a column of {}, not of {}",
                column.physical_type(),
                C::NAME
            ));
        }
        let fault = |error| format!("has a column `{name}` that cannot be decoded ({error})");
        let pages = self.group.get_column_page_reader(index).map_err(fault)?;
        let pages = Box::new(Checked::new(pages, self.rows));
        let reader = get_column_reader(Arc::clone(&column), pages);
        let mut reader = get_typed_column_reader::<C::Stored>(reader);
        let has_levels = column.max_def_level() > 0;
        let (mut levels, mut values) = (Vec::new(), Vec::new());
        let mut read = 0;
        while read < self.rows {
            let levels = has_levels.then_some(&mut levels);
            let (records, _, _) = reader
                .read_records(self.rows - read, levels, None, &mut values)
                .map_err(fault)?;
            if records == 0 {
                return Err(format!("has a column `{name}` that ends after {read} rows"));
            }
            read += records;
        }
        self.budget
            .take_text(values.iter().map(C::text_bytes).sum())
            .map_err(|why| format!("has a column `{name}` that {why}"))?;
        let mut stored = values.iter();
        let full = column.max_def_level();
        let mut cell = |row: usize| {
            let is_there = !has_levels || levels.get(row) == Some(&full);
            let value = is_there.then(|| stored.next()).flatten();
            C::load(value)
                .ok_or_else(|| format!("has a column `{name}` without a value in row {row}"))
        };
        let cells: Result<Vec<C>, String> = (0..self.rows).map(&mut cell).collect();
        Ok(cells?.into_iter())
    }
}

/// A file with these rows.
pub(crate) fn to_parquet<R: Row>(rows: &[R]) -> parquet::errors::Result<Vec<u8>> {
    let fields: parquet::errors::Result<Vec<TypePtr>> = R::COLUMNS
        .iter()
        .map(|column| (column.field)(column.name))
        .collect();
    let schema = Type::group_type_builder(R::TABLE)
        .with_fields(fields?)
        .build()?;
    // A recorder must cost what it watches next to nothing: no statistics and no indexes, which
    // readers of whole files have no use for, and no dictionaries of numbers, which take a look-up
    // per cell. What repeats is left to the compression, in tables that are long enough for it:
    // encoders and compressors set up tables of their own for each column.
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_dictionary_enabled(false);
    let is_long = rows.len() >= COMPRESSED_ROWS;
    if is_long {
        properties = properties.set_compression(Compression::SNAPPY);
    }
    if rows.len() >= ENCODED_ROWS {
        for column in R::COLUMNS {
            let path = || ColumnPath::new(vec![column.name.to_owned()]);
            match (column.field)(column.name)?.get_physical_type() {
                // Of neighbouring times and addresses the difference is short, and dense as it is.
                Physical::INT64 => {
                    properties = properties
                        .set_column_encoding(path(), Encoding::DELTA_BINARY_PACKED)
                        .set_column_compression(path(), Compression::UNCOMPRESSED);
                }
                // Mostly the same few numbers, which the compression would do better with.
                Physical::INT32 if !is_long => {
                    properties =
                        properties.set_column_encoding(path(), Encoding::DELTA_BINARY_PACKED);
                }
                Physical::BYTE_ARRAY => {
                    properties = properties.set_column_dictionary_enabled(path(), true);
                }
                _ => {}
            }
        }
    }
    let mut writer =
        SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties.build()))?;
    {
        let mut target = Target {
            group: writer.next_row_group()?,
        };
        R::write(rows, &mut target)?;
        target.group.close()?;
    }
    writer.into_inner()
}

/// Appends the rows of a file; after a fault, some of them.
pub(crate) fn from_parquet<R: Row>(
    bytes: Bytes,
    budget: &mut Budget,
    into: &mut Vec<R>,
) -> Result<(), String> {
    budget.add_file(bytes.len() as u64);
    contained(|| decode(bytes, budget, into))
}

fn decode<R: Row>(bytes: Bytes, budget: &mut Budget, into: &mut Vec<R>) -> Result<(), String> {
    let reader = SerializedFileReader::new(File(bytes))
        .map_err(|error| format!("is no Parquet file ({error})"))?;
    for index in 0..reader.num_row_groups() {
        let group = reader
            .get_row_group(index)
            .map_err(|error| format!("has a row group {index} that cannot be read ({error})"))?;
        let rows = usize::try_from(group.metadata().num_rows())
            .map_err(|_| format!("has a row group {index} with a negative number of rows"))?;
        budget.take_rows(rows as u64)?;
        // The decoder panics at them.
        let is_negative = |column: &ColumnChunkMetaData| {
            let first = column.dictionary_page_offset();
            first.unwrap_or(0) < 0 || column.data_page_offset() < 0 || column.compressed_size() < 0
        };
        if group.metadata().columns().iter().any(is_negative) {
            return Err(format!(
                "has a row group {index} with columns before its start"
            ));
        }
        into.reserve(rows.min(1 << 20));
        let source = Source {
            group,
            rows,
            budget,
        };
        R::read(&source, into)?;
    }
    Ok(())
}
