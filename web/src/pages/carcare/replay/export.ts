/** Exports a drive as a file: GPX 1.1 for maps and watches, CSV for spreadsheets. */
import { field, type File } from '../../../lib/file';
import type { CarId } from '../telemetry';
import type { Drive, Fix } from './drive';

/** Formats the car's time as UTC, as both formats require. */
const utc = (ms: number) => new Date(ms).toISOString();
/** Formats degrees with seven decimals, which is a precision of a centimeter. */
const degrees = (value: number) => value.toFixed(7).replace(/\.?0+$/, '');
/** Escapes text. XML 1.0 cannot represent the other control characters. */
const xml = (text: string) =>
  // eslint-disable-next-line no-control-regex
  text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, '\ufffd').replace(/[<>&"]/g, (c) => `&#${c.charCodeAt(0)};`);

export function fileName(car: CarId, drive: Drive, kind: 'gpx' | 'csv'): string {
  return `car-${String(car).replace(/[^\w.-]/g, '_')}-${utc(drive.start).slice(0, 16).replace(':', '')}Z.${kind}`;
}

/**
 * Returns one track, with a segment for every span without a break. GPX 1.1 has no elements for speed (m/s) and course
 * (degrees). They are written as Garmin's TrackPointExtension v2, which most programs support. Altitude is not
 * measured.
 *
 * Source: https://www.topografix.com/GPX/1/1/gpx.xsd, https://www8.garmin.com/xmlschemas/TrackPointExtensionv2.xsd
 */
export function gpx(car: CarId, drive: Drive): File {
  const segments: string[] = [];
  let points: string[] = [];
  const close = () => points.length && segments.push(`<trkseg>\n${points.join('\n')}\n</trkseg>`);
  for (const fix of drive.fixes) {
    if (fix.afterBreak) {
      close();
      points = [];
    }
    points.push(point(fix));
  }
  close();
  const text = `<?xml version="1.0" encoding="UTF-8"?>
<gpx version="1.1" creator="Millrace CarCare" xmlns="http://www.topografix.com/GPX/1/1" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:gpxtpx="http://www.garmin.com/xmlschemas/TrackPointExtension/v2" xsi:schemaLocation="http://www.topografix.com/GPX/1/1 http://www.topografix.com/GPX/1/1/gpx.xsd http://www.garmin.com/xmlschemas/TrackPointExtension/v2 http://www.garmin.com/xmlschemas/TrackPointExtensionv2.xsd">
<metadata><time>${utc(drive.start)}</time></metadata>
<trk>
<name>${xml(`Car ${car}`)}</name>
${segments.join('\n')}
</trk>
</gpx>
`;
  return { name: fileName(car, drive, 'gpx'), type: 'application/gpx+xml', text };
}

function point({ record, at, heading }: Fix): string {
  const name = record.event ? `<name>${xml([record.event, record.code].filter(Boolean).join(' '))}</name>` : '';
  const speed = Number.isFinite(record.speed) ? `<gpxtpx:speed>${Math.max(0, record.speed)}</gpxtpx:speed>` : '';
  const course = heading === undefined ? '' : `<gpxtpx:course>${Number(heading.toFixed(1)) % 360}</gpxtpx:course>`;
  const more = speed + course && `<extensions><gpxtpx:TrackPointExtension>${speed}${course}</gpxtpx:TrackPointExtension></extensions>`;
  return `<trkpt lat="${degrees(record.gpsLatitude)}" lon="${degrees(record.gpsLongitude)}"><time>${utc(at)}</time>${name}${more}</trkpt>`;
}

const COLUMNS: readonly (readonly [head: string, value: (fix: Fix) => string | number | undefined])[] = [
  ['time (UTC)', ({ record }) => utc(record.timestamp)],
  ['latitude (deg)', ({ record }) => degrees(record.gpsLatitude)],
  ['longitude (deg)', ({ record }) => degrees(record.gpsLongitude)],
  ['speed (m/s)', ({ record }) => record.speed],
  ['engine (1/min)', ({ record }) => record.rpm],
  ['coolant (degC)', ({ record }) => record.coolantTemperature],
  ['heading (deg)', ({ record }) => record.heading],
  ['gear', ({ record }) => record.gear],
  ['event', ({ record }) => record.event],
  ['code', ({ record }) => record.code],
  ['position', ({ position }) => position],
];

/** Returns all fields of each record as they were sent, one record per line. Source: RFC 4180. */
export function csv(car: CarId, drive: Drive): File {
  const line = (fields: readonly (string | number | undefined)[]) => fields.map(field).join(',') + '\r\n';
  const lines = drive.fixes.map((fix) => line(COLUMNS.map(([, value]) => value(fix))));
  return { name: fileName(car, drive, 'csv'), type: 'text/csv', text: line(COLUMNS.map(([head]) => head)) + lines.join('') };
}
