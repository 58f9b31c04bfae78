/**
 * Map colors for both schemes, because canvas and WebGL cannot read `light-dark()`. They match the tokens of base.css
 * in hue and weight.
 */
export interface Palette {
  readonly sea: string;
  readonly land: string;
  readonly border: string;
  readonly water: string;
  readonly park: string;
  readonly building: string;
  readonly buildingEdge: string;
  readonly street: string;
  readonly streetEdge: string;
  readonly avenue: string;
  readonly avenueEdge: string;
  readonly label: string;
  readonly labelWater: string;
  readonly halo: string;
  readonly car: string;
  readonly carInk: string;
  readonly carEdge: string;
  readonly quiet: string;
  readonly accent: string;
  readonly onAccent: string;
  readonly accentSoft: string;
}

const light: Palette = {
  sea: '#c3dde4',
  land: '#eef1ec',
  border: '#c9d2cd',
  water: '#b9d9e2',
  park: '#d6e6cd',
  building: '#e3e5df',
  buildingEdge: '#d3d7cf',
  street: '#ffffff',
  streetEdge: '#d5dad4',
  avenue: '#ffffff',
  avenueEdge: '#c5cdc7',
  label: '#55635f',
  labelWater: '#2f6d80',
  halo: '#f6f8f5',
  car: '#24383a',
  carInk: '#ffffff',
  carEdge: '#ffffff',
  quiet: '#5d6c6a',
  accent: '#0b6b74',
  onAccent: '#ffffff',
  accentSoft: '#0b6b7433',
};

const dark: Palette = {
  sea: '#0a222b',
  land: '#0f1719',
  border: '#2a383b',
  water: '#0d2b36',
  park: '#13271f',
  building: '#182225',
  buildingEdge: '#202c2f',
  street: '#28353a',
  streetEdge: '#0f1719',
  avenue: '#36464b',
  avenueEdge: '#0f1719',
  label: '#9fb0ad',
  labelWater: '#6fb3c4',
  halo: '#0f1719',
  car: '#d9e4e2',
  carInk: '#10201f',
  carEdge: '#0c1214',
  quiet: '#93a4a1',
  accent: '#62d2d3',
  onAccent: '#06201f',
  accentSoft: '#62d2d33d',
};

export const scheme = matchMedia('(prefers-color-scheme: dark)');
export const palette = (): Palette => (scheme.matches ? dark : light);
