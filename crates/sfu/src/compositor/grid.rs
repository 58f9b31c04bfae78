/// Part of the composite frame. All values are even, because chroma has half the resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
}

/// Returns the cells for this number of videos: as many columns as rows, or one more. The last row is in the middle.
pub fn grid(count: usize, (width, height): (usize, usize)) -> Vec<Cell> {
    let columns = (1..).find(|columns| columns * columns >= count).unwrap_or(1);
    let rows = count.div_ceil(columns);
    let (cell_width, cell_height) = ((width / columns) & !1, (height / rows.max(1)) & !1);
    let cell = |at: usize| {
        let row = at / columns;
        let in_row = columns.min(count - row * columns);
        let margin = ((width - in_row * cell_width) / 2) & !1;
        let x = margin + at % columns * cell_width;
        Cell { x, y: row * cell_height, width: cell_width, height: cell_height }
    };
    (0..count).map(cell).collect()
}

/// Returns a part of the frame in samples of chroma.
pub fn half(Cell { x, y, width, height }: Cell) -> Cell {
    Cell { x: x / 2, y: y / 2, width: width / 2, height: height / 2 }
}

/// Returns the part of a cell that a video of this size covers.
pub fn fit((width, height): (usize, usize), cell: Cell) -> Cell {
    let (fit_width, fit_height) = match width * cell.height > height * cell.width {
        true => (cell.width, height * cell.width / width),
        false => (width * cell.height / height, cell.height),
    };
    let (fit_width, fit_height) = ((fit_width & !1).max(2), (fit_height & !1).max(2));
    let (right, down) = (((cell.width - fit_width) / 2) & !1, ((cell.height - fit_height) / 2) & !1);
    Cell { x: cell.x + right, y: cell.y + down, width: fit_width, height: fit_height }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: (usize, usize) = (640, 480);

    #[test]
    fn cells_fill_the_frame_without_overlap() {
        for count in 1..=16 {
            let cells = grid(count, SIZE);
            assert_eq!(cells.len(), count);
            let mut covered = vec![false; SIZE.0 * SIZE.1];
            for Cell { x, y, width, height } in cells {
                assert!([x, y, width, height].iter().all(|value| value % 2 == 0), "{count}");
                assert!(x + width <= SIZE.0 && y + height <= SIZE.1, "{count}");
                for row in y..y + height {
                    for pixel in &mut covered[row * SIZE.0 + x..][..width] {
                        assert!(!std::mem::replace(pixel, true), "{count} cells overlap");
                    }
                }
            }
        }
        assert_eq!(grid(3, SIZE)[2], Cell { x: 160, y: 240, width: 320, height: 240 }, "in the middle of the last row");
        assert!(grid(0, SIZE).is_empty());
    }
}
