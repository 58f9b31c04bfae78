// Renders the application on a server.
import { renderToString } from 'react-dom/server';
import { millrace } from '@millrace/client';
import { MillraceProvider } from '@millrace/client/react';
import '../channels.js';
import { App } from './App.js';

export const render = (url: string): string =>
  renderToString(
    <MillraceProvider client={millrace(url)}>
      <App />
    </MillraceProvider>,
  );
