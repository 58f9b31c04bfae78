import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

// The mode `react-18` builds the same application with React 18.
export default defineConfig(({ mode }) => ({
  plugins: [react()],
  resolve: mode === 'react-18' ? { alias: [{ find: /^react(-dom)?(?=\/|$)/, replacement: 'react$1-18' }] } : {},
}));
