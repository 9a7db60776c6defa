//! Example drawings for `scripts/check-drawings.sh`, which looks at them in a browser.

use super::canvas::tests::is_sound;
use super::*;
use std::f64::consts::TAU;
use std::path::PathBuf;

/// A folder; when it is set, the examples are written there.
const FOLDER: &str = "HITHER_DRAWINGS";

/// Bytes of the address space that a row stands for.
const ROW_BYTES: u64 = 2 << 20;

fn heatmap(value_scale: Scale) -> Heatmap {
    let (rows, columns) = (64_usize, 256_usize);
    let row = |row: usize| {
        // Heap, then what is mapped high up, then the stack.
        let (base, gap) = match row {
            0..40 => (0x5581_2000_0000, None),
            40..60 => (0x7f3c_8000_0000, Some("41.7 TiB not mapped")),
            _ => (0x7ffd_4000_0000, Some("768 GiB not mapped")),
        };
        Row {
            label: format!("{:x}", base + row as u64 * ROW_BYTES),
            gap: gap.filter(|_| row == 40 || row == 60).map(str::to_owned),
        }
    };
    let cell = |row: usize, column: usize| {
        let (y, x) = (row as f64, column as f64);
        // A hot spot that moves, over a fading rest; a pause in which nothing was measured.
        let centre = 20.0 + 15.0 * (x / columns as f64 * TAU).sin();
        let hot = 90_000.0 * (-((y - centre) / 3.0).powi(2)).exp();
        let rest = if row >= 40 {
            400.0 * (1.0 + y % 5.0)
        } else {
            10.0
        };
        if (180..188).contains(&column) {
            f64::NAN
        } else {
            (hot + rest).floor()
        }
    };
    Heatmap {
        title: "Accesses by address and time".into(),
        subtitle: "example: a hot spot that moves through the heap; each row is 2 MiB".into(),
        x_title: "time (s)".into(),
        y_title: "address (hexadecimal)".into(),
        value_title: "accesses to 2 MiB (1/s)".into(),
        value_scale,
        x: (0..=columns).map(|edge| edge as f64 * 0.1).collect(),
        rows: (0..rows).map(row).collect(),
        cells: (0..rows * columns)
            .map(|index| cell(index / columns, index % columns))
            .collect(),
    }
}

fn working_set() -> LineChart {
    let points = |size: f64| {
        let at = |index: u32| {
            let time = f64::from(index) * 0.05;
            let mib = size * (1.0 + 0.3 * (time / 3.0).sin());
            (
                time,
                if (200..220).contains(&index) {
                    f64::NAN
                } else {
                    mib
                },
            )
        };
        (0..512).map(at).collect()
    };
    let series = |index: usize| Series {
        name: [
            "node0",
            "node1",
            "all nodes, weighted by the thesis's formula",
        ][index]
            .into(),
        colour: index,
        shape: if index == 2 {
            Shape::Dashed
        } else {
            Shape::Line
        },
        points: points([400.0, 900.0, 1300.0][index]),
    };
    LineChart {
        title: "Working set over time".into(),
        subtitle: "example: memory that was accessed in the last second".into(),
        x: Axis::new("time (s)", Scale::Linear),
        y: Axis::new("working set (MiB)", Scale::Linear),
        series: (0..3).map(series).collect(),
    }
}

fn distribution() -> LineChart {
    LineChart {
        title: "Working set, distribution".into(),
        subtitle: "example: in so many of the seconds it was no larger".into(),
        x: Axis::new("share of the seconds (%)", Scale::Linear),
        y: Axis::new("working set (MiB)", Scale::Logarithmic),
        series: vec![Series {
            name: "the program".into(),
            colour: 0,
            shape: Shape::Line,
            points: (0..=20)
                .map(|step| (f64::from(step) * 5.0, 90.0 * 1.3_f64.powi(step)))
                .collect(),
        }],
    }
}

fn roofline() -> LineChart {
    let roof = |name: &str, colour, gbs: f64| Series {
        name: format!("{name}, {gbs} GB/s"),
        colour,
        shape: Shape::Line,
        points: vec![(0.01, gbs * 0.01), (200.0 / gbs, 200.0), (100.0, 200.0)],
    };
    let program = |name: &str, colour, at| Series {
        name: name.into(),
        colour,
        shape: Shape::Points,
        points: vec![at],
    };
    LineChart {
        title: "Roofline".into(),
        subtitle: "example: two phases of a program below what the machine could do".into(),
        x: Axis::new("arithmetic intensity (flop/byte)", Scale::Logarithmic),
        y: Axis::new("speed (Gflop/s)", Scale::Logarithmic),
        series: vec![
            roof("near memory", 0, 40.0),
            roof("far memory", 1, 12.0),
            program("phase 1", 2, (0.2, 3.1)),
            program("phase 2", 3, (6.0, 71.0)),
        ],
    }
}

fn areas() -> BarChart {
    let part = |colour: usize, values: [f64; 4]| Part {
        name: format!("node{colour}"),
        colour,
        values: values.to_vec(),
    };
    let names = [
        "grid (solver/grid.c:118)",
        "matrix values (solver/sparse/compressed_rows.c:1204)",
        "halo (comm.c:77)",
        "stack of thread 4",
    ];
    BarChart {
        title: "Reads by data area and node".into(),
        subtitle: "example: where the bytes came from".into(),
        names_title: "data area (file:line)".into(),
        value_title: "read (GB)".into(),
        names: names.map(str::to_owned).to_vec(),
        parts: vec![
            part(0, [120.0, 64.0, 3.0, 0.2]),
            part(1, [4.0, 61.0, 3.1, 0.0]),
            part(2, [4.2, 3.0, 2.9, 0.0]),
            part(3, [4.1, 2.0, 3.0, 0.0]),
        ],
    }
}

fn page() -> Page {
    let words = |cells: &[&str]| {
        cells
            .iter()
            .map(|cell| (*cell).to_owned())
            .collect::<Vec<_>>()
    };
    let section = |heading: &str, body| Section {
        heading: heading.into(),
        body,
    };
    let table = Block::Table {
        head: words(&[
            "data area",
            "allocated at",
            "reads (GB)",
            "from its own node (%)",
        ]),
        rows: vec![
            words(&["grid", "solver/grid.c:118", "132.3", "90.7"]),
            words(&[
                "matrix values",
                "solver/sparse/compressed_rows.c:1204",
                "130.0",
                "49.2",
            ]),
            words(&["halo <&>", "comm.c:77", "12.0", "25.0"]),
        ],
        alignment: vec![
            Alignment::Left,
            Alignment::Left,
            Alignment::Right,
            Alignment::Right,
        ],
    };
    let verdict = "Example. Half of the reads of one data area come from the wrong node: it was \
                   written first by another thread than the one that reads it.";
    Page {
        title: "hither report: example".into(),
        sections: vec![
            section(
                "Summary",
                vec![
                    Block::Paragraph(verdict.into()),
                    Block::Paragraph("Try next:".into()),
                    Block::Code("hither run -- ./solver\n".into()),
                    table,
                ],
            ),
            section(
                "Accesses",
                vec![Block::Svg(heatmap(Scale::Logarithmic).svg())],
            ),
            section(
                "Working set",
                vec![
                    Block::Svg(working_set().svg()),
                    Block::Svg(distribution().svg()),
                ],
            ),
            section("Data areas", vec![Block::Svg(areas().svg())]),
            section("Roofline", vec![Block::Svg(roofline().svg())]),
            section(
                "In the terminal",
                vec![Block::Code(
                    heatmap(Scale::Logarithmic).terminal(76, 24, false),
                )],
            ),
        ],
    }
}

/// What has little room: long names, many gaps and series, large and small numbers.
fn crowded() -> Page {
    let long = "a name that is longer than any figure is wide, ".repeat(4);
    let rows = |row: usize| Row {
        label: format!("{long}{row}"),
        gap: (row.is_multiple_of(2)).then(|| format!("{row} {long}")),
    };
    let heatmap = Heatmap {
        title: long.clone(),
        subtitle: long.clone(),
        rows: (0..60).map(rows).collect(),
        x: (0..=50).map(|edge| 1e6 + f64::from(edge) * 1e-3).collect(),
        cells: (0..60 * 50).map(|cell| f64::from(cell) * 1e9).collect(),
        ..heatmap(Scale::Linear)
    };
    let series = |index: usize| Series {
        name: format!("cgroup {index} {long}{index}"),
        colour: index,
        shape: [Shape::Line, Shape::Dashed, Shape::Points][index % 3],
        points: (1..40)
            .map(|x| (f64::from(x) * 1e-7, f64::from(x) * 3e7 * index as f64))
            .collect(),
    };
    let lines = LineChart {
        title: long.clone(),
        subtitle: long.clone(),
        x: Axis::new("time (s)", Scale::Linear),
        y: Axis::new("accesses (1/s)", Scale::Linear),
        series: (0..30).map(series).collect(),
    };
    let bars = BarChart {
        names: (0..30).map(|index| format!("{index} {long}")).collect(),
        title: long.clone(),
        parts: (0..9)
            .map(|colour| Part {
                name: format!("{colour} {long}"),
                colour,
                values: vec![1e-6; 30],
            })
            .collect(),
        ..areas()
    };
    let figures = [heatmap.svg(), lines.svg(), bars.svg()];
    let table = Block::Table {
        head: vec![long.replace(' ', "-"); 6],
        rows: vec![vec![long.clone(); 6]; 2],
        alignment: Vec::new(),
    };
    let mut body: Vec<Block> = figures.into_iter().map(Block::Svg).collect();
    body.extend([
        table,
        Block::Code(long.repeat(4)),
        Block::Paragraph(long.replace(' ', "_")),
    ]);
    Page {
        title: long.replace(' ', "_"),
        sections: vec![Section {
            heading: long.replace(' ', "_"),
            body,
        }],
    }
}

#[test]
fn examples_are_drawn_and_written_where_they_are_asked_for() {
    let figures = [
        ("heatmap.svg", heatmap(Scale::Linear).svg()),
        ("working-set.svg", working_set().svg()),
        ("areas.svg", areas().svg()),
        ("stacked.svg", stacked(&[distribution(), roofline()])),
    ];
    for (name, svg) in &figures {
        assert!(is_sound(svg), "{name}: {svg}");
    }
    let terminal = heatmap(Scale::Linear).terminal(80, 30, true);
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    for (name, svg) in &figures {
        write(name, svg);
    }
    write("page.html", &page().html());
    write("crowded.html", &crowded().html());
    write("heatmap.ansi", &terminal);
}
